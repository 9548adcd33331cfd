//! Nodes, pods, links and the API server on one clock.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};

use super::cluster::{self, Backed, Identity, UDP_PORT, Update};
use super::flows::{self, Flow, Flows, State, Target};
use super::invariant::{Invariant, Violation};
use super::network::{Arrival, Network};
use super::oracle::{addresses, flow_of};
use super::pod::{Notice, Pod, Transfer};
use super::process::{Input, Outputs, Process, WAKE_EVERY};
use super::rng::{Rng, mixed};
use super::schedule::Schedule;
use super::tamper::Tamper;
use super::view::View;
use super::{Plan, Scale};
use crate::packets;

/// Between a pod and the device of its node.
const HOST_DELAY: Duration = Duration::from_micros(10);

/// Lines that are kept of what was done to the cluster.
const LOG_LINES: usize = 30;

/// What happens at an instant.
#[derive(Debug)]
pub enum Event {
    /// A pod's packet reaches the host.
    FromPod(usize, Vec<u8>),
    /// A packet written to a node's device.
    ToPod(usize, Vec<u8>),
    /// A datagram reaches an underlay address.
    Arrive(Arrival),
    /// A pod's timer.
    PodTimer(usize),
    /// The next question of a UDP flow.
    Ask(u64),
    /// A node hears of a change; dropped when its process is not the one that the watch was of.
    Hear(usize, u64, Update),
    /// A node publishes what it has heard.
    Publish(usize),
    /// A node lists everything anew.
    Relist(usize),
    /// A node's workers wake up.
    Wake(usize),
    /// Something is done to the cluster.
    Edit,
    /// A pod opens a flow.
    OpenFlow,
    /// A pod that was told to end does.
    EndPod(usize),
}

/// One machine.
pub struct Node {
    /// As its Node object has it.
    pub identity: Identity,
    /// `windlass run`, while it runs.
    pub process: Option<Process>,
    /// Counts the processes, so that a watch ends with its process.
    pub epoch: u64,
    /// Workers of the next process.
    pub workers: usize,
    /// Whether the API server cannot be reached.
    pub is_cut_off: bool,
    /// When a packet last reached the process.
    pub fed_at: Instant,
    /// Whether it is in the cluster.
    pub is_member: bool,
    /// Its pods by address: those that run.
    pub pods: BTreeMap<IpAddr, usize>,
    /// Number of the next pod.
    pub next_pod: usize,
}

/// Everything.
pub struct World {
    /// How large.
    pub scale: Scale,
    /// What decides.
    pub rng: Rng,
    /// Time.
    pub schedule: Schedule<Event>,
    /// Links.
    pub network: Network,
    /// What the API server knows.
    pub truth: View,
    /// Machines.
    pub nodes: Vec<Node>,
    at: BTreeMap<IpAddr, usize>,
    /// Identities given out.
    pub identities: usize,
    /// Pods, those that ended too.
    pub pods: Vec<Pod>,
    /// Services by number; `None` for deleted ones.
    pub services: Vec<Option<Backed>>,
    /// The pods that each service has ever had.
    pub members: Vec<BTreeSet<usize>>,
    /// ClusterIPs given out.
    pub cluster_ips: usize,
    /// Age of the next object.
    pub created_at: i64,
    /// Flows.
    pub flows: Flows,
    /// Whether the cluster is left alone.
    pub is_quiet: bool,
    /// Packets through engines.
    pub packets: u64,
    /// Follows from everything that any node was fed.
    pub digest: u64,
    log: VecDeque<String>,
    tamper: Option<Tamper>,
    next_port: u16,
    watch: Option<u16>,
}

type Step = Result<(), Violation>;

impl World {
    /// A cluster as `plan` wants it, all of its nodes up to date.
    pub fn new(plan: &Plan) -> Self {
        let mut world = Self {
            scale: plan.scale.clone(),
            rng: Rng::new(mixed(plan.seed)),
            schedule: Schedule::default(),
            network: Network::default(),
            truth: View::default(),
            nodes: Vec::new(),
            at: BTreeMap::new(),
            identities: 0,
            pods: Vec::new(),
            services: Vec::new(),
            members: Vec::new(),
            cluster_ips: 0,
            created_at: 0,
            flows: Flows::default(),
            is_quiet: false,
            packets: 0,
            digest: plan.seed,
            log: VecDeque::new(),
            tamper: plan.tamper,
            next_port: 20_000,
            watch: plan.watch,
        };
        world.populate();
        world
    }

    fn populate(&mut self) {
        for number in 0..self.scale.nodes {
            self.add_machine(number);
        }
        for _ in 0..self.scale.services {
            self.add_service();
        }
        for number in 0..self.scale.nodes {
            if self.scale.awake.is_none() {
                self.start(number, true);
            }
        }
    }

    fn add_machine(&mut self, number: usize) {
        let identity = self.new_identity(number, cluster::underlay_address(number));
        self.at.insert(identity.underlay, number);
        let workers = self.rng.between(1, 3);
        self.nodes.push(Node {
            identity,
            process: None,
            epoch: 0,
            workers,
            is_cut_off: false,
            fed_at: Instant::ZERO,
            is_member: true,
            pods: BTreeMap::new(),
            next_pod: 0,
        });
        self.register(number);
        for _ in 0..=self.scale.pods_per_node {
            self.add_pod(number);
        }
    }

    /// A new identity for the machine `number`: a range of pods and a MAC that nobody had.
    pub fn new_identity(&mut self, number: usize, underlay: IpAddr) -> Identity {
        self.identities += 1;
        Identity::new(&format!("node-{number}"), self.identities, underlay)
    }

    /// Puts the machine's Node object where its identity says.
    pub fn register(&mut self, number: usize) {
        self.created_at += 1;
        let identity = &self.nodes[number].identity;
        let object = identity.object(self.created_at);
        self.announce(Update::Node(identity.name.clone(), Some(object.into())));
    }

    /// Makes `number`'s machine the one at its identity's underlay address.
    pub fn move_machine(&mut self, number: usize, identity: Identity) {
        self.at.retain(|_, machine| *machine != number);
        self.at.insert(identity.underlay, number);
        self.nodes[number].identity = identity;
    }

    /// A new pod on a node; the first one there is the host itself.
    pub fn add_pod(&mut self, node: usize) -> usize {
        let number = self.nodes[node].next_pod;
        self.nodes[node].next_pod += 1;
        let addresses = self.nodes[node].identity.pod_addresses(number);
        let seed = self.rng.number();
        let pod = self.pods.len();
        self.pods.push(Pod::new(addresses, node, number == 0, seed));
        self.nodes[node].pods.extend(addresses.map(|addr| (addr, pod)));
        pod
    }

    /// Tells the API server, and thereby everybody, sooner or later.
    pub fn announce(&mut self, update: Update) {
        self.truth.apply(&update);
        for node in 0..self.nodes.len() {
            self.tell(node, &update);
        }
    }

    /// Lets a node hear of `update` after a while, out of order with what else it hears.
    pub fn tell(&mut self, node: usize, update: &Update) {
        if self.nodes[node].process.is_none() || self.nodes[node].is_cut_off {
            return;
        }
        let is_late = self.rng.chance(100);
        let longest = Duration::from_millis(if is_late { 2_000 } else { 50 });
        let delay = self.rng.duration(Duration::from_millis(1), longest);
        self.schedule.after(delay, Event::Hear(node, self.nodes[node].epoch, update.clone()));
    }

    /// Starts a node's process, from everything that is known or from nothing.
    pub fn start(&mut self, number: usize, is_synced: bool) {
        self.make_room();
        let node = &mut self.nodes[number];
        let seed = self.rng.number();
        let mut process = Process::start(node.identity.settings(), node.workers, seed, self.tamper);
        if is_synced {
            process.know(&self.truth);
        }
        if node.epoch == 0 {
            self.schedule.after(WAKE_EVERY, Event::Wake(number));
        }
        node.epoch += 1;
        node.process = Some(process);
        if !is_synced {
            let delay = self.rng.duration(Duration::from_millis(100), Duration::from_secs(2));
            self.schedule.after(delay, Event::Relist(number));
        }
    }

    /// Notes what was done, for whoever must understand a failure.
    pub fn say(&mut self, line: impl FnOnce() -> String) {
        if self.log.len() == LOG_LINES {
            self.log.pop_front();
        }
        let at = self.schedule.now().as_nanos() as f64 / 1e9;
        self.log.push_back(format!("{at:10.6} s  {}", line()));
    }

    /// What was done last.
    pub fn log(&self) -> impl Iterator<Item = &String> {
        self.log.iter()
    }

    /// Lets everything happen that happens in the next `duration`.
    ///
    /// # Errors
    /// The first invariant that does not hold.
    pub fn run_for(&mut self, duration: Duration) -> Step {
        let end = self.schedule.now() + duration;
        while let Some(event) = self.schedule.next(end) {
            self.happen(event)?;
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> Step {
        match event {
            Event::FromPod(pod, packet) => self.sent_by_pod(pod, packet),
            Event::ToPod(node, packet) => self.deliver(node, packet),
            Event::Arrive(arrival) => self.arrive(arrival),
            Event::PodTimer(pod) => {
                let is_due = self.pods[pod].timer_at.is_some_and(|at| at <= self.schedule.now());
                if is_due { self.poll(pod) } else { Ok(()) }
            }
            Event::Ask(flow) => {
                self.ask(flow);
                Ok(())
            }
            Event::Hear(node, epoch, update) => {
                self.hear(node, epoch, update);
                Ok(())
            }
            Event::Publish(node) => {
                self.nodes[node].process.as_mut().into_iter().for_each(Process::publish);
                Ok(())
            }
            Event::Relist(node) => {
                self.relist(node);
                Ok(())
            }
            Event::Wake(node) => {
                self.schedule.after(WAKE_EVERY, Event::Wake(node));
                let now = self.schedule.now();
                self.nodes[node].process.as_mut().map_or(Ok(()), |process| process.wake(now))
            }
            Event::Edit => {
                self.edit();
                Ok(())
            }
            Event::OpenFlow => {
                self.open_any_flow();
                Ok(())
            }
            Event::EndPod(pod) => {
                self.end_pod(pod);
                Ok(())
            }
        }
    }

    fn hear(&mut self, node: usize, epoch: u64, update: Update) {
        let is_current = self.nodes[node].epoch == epoch && !self.nodes[node].is_cut_off;
        let Some(process) = self.nodes[node].process.as_mut().filter(|_| is_current) else { return };
        // Whoever hears something old hears of it again: a watch that went back in time lists anew.
        let is_stale = match &update {
            Update::Node(name, node) => self.truth.state.nodes.get(name) != node.as_ref(),
            Update::Service(name, service) => self.truth.state.services.get(name) != service.as_ref(),
            Update::Slice(name, slice) => self.truth.state.endpoint_slices.get(name) != slice.as_ref(),
        };
        process.hear(update);
        let delay = self.rng.duration(Duration::ZERO, Duration::from_millis(50));
        self.schedule.after(delay, Event::Publish(node));
        if is_stale {
            let delay = self.rng.duration(Duration::from_secs(1), Duration::from_secs(3));
            self.schedule.after(delay, Event::Relist(node));
        }
    }

    /// A node hears of everything that it does not know yet.
    pub fn relist(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        if node.is_cut_off {
            return;
        }
        let Some(process) = &mut node.process else { return };
        process.publish();
        process.view.missing(&self.truth.state).into_iter().for_each(|update| process.hear(update));
        process.publish();
    }

    fn sent_by_pod(&mut self, pod: usize, packet: Vec<u8>) -> Step {
        let number = self.pods[pod].node;
        let Some((_, dst)) = addresses(&packet) else { return Ok(()) };
        if !self.pods[pod].is_alive {
            return Ok(());
        }
        let node = &self.nodes[number];
        if node.identity.pod_cidrs.iter().any(|cidr| cidr.contains(&dst)) {
            // The bridge of the node; our device never sees it.
            return self.deliver(number, packet);
        }
        let hash =
            packet.get(12..44).unwrap_or(&packet).iter().fold(0, |hash, byte| mixed(hash ^ u64::from(*byte)));
        self.feed(number, Input::Overlay(packet), hash)
    }

    fn arrive(&mut self, arrival: Arrival) -> Step {
        let Some(&node) = self.at.get(&arrival.to) else { return Ok(()) };
        let from = SocketAddr::new(arrival.from, 49_152 | arrival.source_port);
        let hash = mixed(u64::from(arrival.source_port) << 1 | 1);
        self.feed(node, Input::Underlay { payload: arrival.payload, from, tos: arrival.tos }, hash)
    }

    fn feed(&mut self, number: usize, input: Input, flow_hash: u64) -> Step {
        if self.nodes[number].process.is_none() {
            self.wake_up(number);
        }
        let now = self.schedule.now();
        let node = &mut self.nodes[number];
        node.fed_at = now;
        let Some(process) = &mut node.process else { return Ok(()) };
        self.packets += 1;
        let (Input::Overlay(bytes) | Input::Underlay { payload: bytes, .. }) = &input;
        let fed = bytes
            .iter()
            .fold(now.as_nanos() ^ number as u64, |hash, byte| hash.rotate_left(5) ^ u64::from(*byte));
        self.digest = mixed(self.digest ^ fed);
        let watched = self.watch.map(|port| (port, input.clone()));
        let name = &node.identity.name;
        let outputs = process
            .feed(input, flow_hash, now)
            .map_err(|violation| Violation { text: format!("{name}: {}", violation.text), ..violation })?;
        if let Some(line) = watched.and_then(|(port, input)| watched_line(port, &input, &outputs)) {
            crate::say(&format!("{:10.6} s  {name}: {line}", now.as_nanos() as f64 / 1e9));
        }
        let Outputs { packets, datagrams, .. } = outputs;
        let underlay = node.identity.underlay;
        for packet in packets {
            self.schedule.after(HOST_DELAY, Event::ToPod(number, packet));
        }
        for datagram in datagrams {
            for arrival in self.network.carry(underlay, datagram, &mut self.rng) {
                self.schedule.after(arrival.delay, Event::Arrive(arrival));
            }
        }
        Ok(())
    }

    fn deliver(&mut self, node: usize, packet: Vec<u8>) -> Step {
        let Some((_, dst)) = addresses(&packet) else { return Ok(()) };
        let Some(&pod) = self.nodes[node].pods.get(&dst) else { return Ok(()) };
        match flow_of(&packet) {
            Some((flow, flags)) if flow.protocol == Protocol::TCP => {
                self.pods[pod].receive(packet, &flow, flags);
                self.poll(pod)
            }
            Some((flow, _)) => {
                let headers_len = if flow.src.is_ipv4() { 20 } else { 40 } + 8;
                self.datagram(pod, flow, &packet[headers_len..])
            }
            None => Ok(()),
        }
    }

    /// A UDP datagram has reached a pod: a question, which it answers, or an answer.
    fn datagram(&mut self, pod: usize, key: FlowKey, payload: &[u8]) -> Step {
        let Some((kind, number, question)) = flows::read_message(payload) else { return Ok(()) };
        if kind == b'Q' && key.dst_port == UDP_PORT {
            self.is_for(pod, number)?;
            let answer = packets::udp(&key.reversed(), &flows::message(b'A', number, question));
            self.schedule.after(HOST_DELAY, Event::FromPod(pod, answer));
            return Ok(());
        }
        let Some(flow) = self.flows.get_mut(number) else { return Ok(()) };
        if flow.client != pod {
            let text = format!("pod {pod} got the answer of {}", flow.describe(number));
            return Err(Violation::new(Invariant::RightPod, text));
        }
        // One that still has the backend's address was judged where it was delivered.
        if flow.key.reversed() != key || flow.state != State::Open || question != flow.answered {
            return Ok(());
        }
        flow.answered += 1;
        if flow.answered == flow.questions {
            self.flows.end(number, State::Done);
        }
        Ok(())
    }

    /// Whether the flow may be served by this pod.
    fn is_for(&mut self, pod: usize, number: u64) -> Step {
        let Some(flow) = self.flows.get_mut(number) else { return Ok(()) };
        let is_right = match flow.target {
            Target::Pod(target) => target == pod,
            Target::Service(service) => self.members[service].contains(&pod),
        };
        flow.server = Some(pod);
        match is_right {
            true => Ok(()),
            false => {
                let text = format!("pod {pod} got what is not for it: {}", flow.describe(number));
                Err(Violation::new(Invariant::RightPod, text))
            }
        }
    }

    fn poll(&mut self, number: usize) -> Step {
        let now = self.schedule.now();
        let pod = &mut self.pods[number];
        if !pod.is_alive {
            return Ok(());
        }
        let (packets, notices) = pod.poll(now);
        let wants = pod.wants_poll_at(now);
        if let Some(at) = wants
            && pod.timer_at.is_none_or(|timer| at < timer || timer <= now)
        {
            pod.timer_at = Some(at);
            self.schedule.after(at - now, Event::PodTimer(number));
        } else if wants.is_none() {
            pod.timer_at = None;
        }
        for packet in packets {
            self.schedule.after(HOST_DELAY, Event::FromPod(number, packet));
        }
        notices.into_iter().try_for_each(|notice| self.notice(number, notice))
    }

    fn notice(&mut self, pod: usize, notice: Notice) -> Step {
        match notice {
            Notice::Served(flow) => self.is_for(pod, flow)?,
            Notice::Done(flow) => self.flows.end(flow, State::Done),
            Notice::Damaged(flow) => {
                let text = format!("flow {flow} of pod {pod} got bytes of another one");
                return Err(Violation::new(Invariant::RightPod, text));
            }
            Notice::Ended(number, received) => {
                let is_quiet = self.is_quiet;
                if let Some(flow) = self.flows.get_mut(number)
                    && received == 0
                    && flow.server.is_none()
                    && !is_quiet
                {
                    flow.excuse = flow.excuse.or(Some("refused; whether rightly, was judged at once"));
                }
                self.flows.end(number, State::Ended);
            }
        }
        Ok(())
    }

    fn ask(&mut self, number: u64) {
        let Some(flow) = self.flows.get_mut(number) else { return };
        let (client, pause) = (flow.client, flow.pause);
        let Some(question) = flow.question(number) else {
            // Only what was asked of a cluster that was left alone must be answered.
            if !flow.is_probe {
                flow.excuse = flow.excuse.or(Some("UDP promises nothing"));
            }
            return self.flows.end(number, State::Ended);
        };
        if self.pods[client].is_alive {
            self.schedule.after(HOST_DELAY, Event::FromPod(client, question));
            self.schedule.after(pause, Event::Ask(number));
        }
    }

    /// Opens a flow; `None` when the client has no port left for it.
    pub fn open(
        &mut self,
        client: usize,
        target: Target,
        addr: SocketAddr,
        protocol: Protocol,
        length: usize,
    ) -> Option<u64> {
        let now = self.schedule.now();
        let port = self.free_port(client, &target, protocol)?;
        let src = self.pods[client].address_like(addr.ip());
        let key = FlowKey { src, dst: addr.ip(), protocol, src_port: port, dst_port: addr.port() };
        let longest_pause = Duration::from_millis(if self.scale.awake.is_some() { 40 } else { 400 });
        let pause = self.rng.duration(Duration::from_millis(20), longest_pause);
        let number = self.flows.open(Flow {
            client,
            key,
            target,
            server: None,
            state: State::Open,
            excuse: None,
            is_probe: self.is_quiet,
            opened_at: now,
            asked: 0,
            answered: 0,
            questions: length as u32,
            pause,
        });
        if protocol == Protocol::TCP {
            let transfer = Transfer { flow: number, chunk_len: 200, chunks: length, pause };
            self.pods[client].connect(port, addr, transfer, now);
            self.pods[client].timer_at = Some(now);
            self.schedule.after(Duration::ZERO, Event::PodTimer(client));
        } else {
            self.schedule.after(Duration::ZERO, Event::Ask(number));
        }
        Some(number)
    }

    /// TCP takes a new port for each connection. UDP takes one of a few again, which no open flow has; a port that has
    /// been used toward a VIP is not used toward a pod later: replies of the backend would belong to both, and the
    /// engine, which does not track what it does not translate, takes them for the VIP's.
    fn free_port(&mut self, client: usize, target: &Target, protocol: Protocol) -> Option<u16> {
        if protocol == Protocol::TCP {
            self.next_port = self.next_port.checked_add(1).unwrap_or(20_000);
            return Some(self.next_port);
        }
        let first = 2_000 + self.rng.below(UDP_PORTS) as u16;
        let ports = (0..UDP_PORTS as u16).map(|i| 2_000 + (first + i) % UDP_PORTS as u16);
        let is_free = |port: &u16| {
            !self.flows.iter().any(|(_, flow)| {
                let was_vip = matches!(flow.target, Target::Service(_)) && matches!(target, Target::Pod(_));
                flow.holds(client, *port) && (flow.state == State::Open || was_vip)
            })
        };
        ports.into_iter().find(is_free)
    }

    /// The time.
    pub fn now(&self) -> Instant {
        self.schedule.now()
    }
}

/// What became of a packet from or to `port`.
fn watched_line(port: u16, input: &Input, outputs: &Outputs) -> Option<String> {
    let (side, packet) = match input {
        Input::Overlay(packet) => ("device", packet.as_slice()),
        Input::Underlay { payload, .. } => ("underlay", payload.get(22..)?),
    };
    let (flow, flags) = flow_of(packet).filter(|(flow, _)| flow.src_port == port || flow.dst_port == port)?;
    let sent = outputs.datagrams.iter().map(|datagram| (datagram.remote, &datagram.payload[22..]));
    let out: Vec<String> = sent
        .map(|(remote, packet)| format!("{remote} {:?}", flow_of(packet)))
        .chain(outputs.packets.iter().map(|packet| format!("device {:?}", flow_of(packet))))
        .collect();
    Some(format!("{side} {flow} flags {flags:#04x} -> {out:?} {:?}", outputs.drops))
}

/// UDP ports of a pod.
const UDP_PORTS: usize = 12;
