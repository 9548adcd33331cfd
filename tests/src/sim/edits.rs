//! What is done to a cluster that is not left alone.

use std::net::SocketAddr;
use std::time::Duration;

use windlass_control::cluster::ObjectName;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};

use super::cluster::{self, Backed, Condition, Member, TCP_PORT, UDP_PORT, Update, VIP_PORT};
use super::flows::{Flow, Target};
use super::network::Faults;
use super::rng::mixed;
use super::world::{Event, World};
use crate::packets::{Tcp, tcp, udp};

impl World {
    /// One more thing happens to the cluster, and another one later.
    pub fn edit(&mut self) {
        if self.is_quiet {
            return;
        }
        let every = self.scale.edit_every;
        let delay = self.rng.duration(every / 4, every * 2);
        self.schedule.after(delay, Event::Edit);
        let nodes = self.busy_nodes();
        let Some(&node) = self.rng.pick(&nodes) else { return };
        let service = self.service_near(node);
        match self.rng.below(24) {
            0..=2 => self.new_backend(node, service),
            3..=4 => self.retire_backend(service),
            5..=6 => self.kill_backend(service),
            7..=8 => self.flip_backend(service),
            9 => self.delete_service(service),
            10 => self.move_vip(service),
            11 => self.change_affinity(service),
            12..=13 => self.restart(node),
            14 => self.readdress(node),
            15 => self.leave_or_join(node),
            16 => self.steer(node),
            17..=19 => self.disturb(node),
            20 => self.cut(node),
            21 => self.cut_off(node),
            22 => self.tell_again(node),
            _ => self.flood(node, service),
        }
    }

    /// A service with a few backends, anywhere.
    pub fn add_service(&mut self) {
        let number = self.services.len();
        self.created_at += 1;
        self.cluster_ips += 1;
        let affinity = self.rng.chance(150).then_some(Duration::from_secs(5));
        let internal_local = self.rng.chance(50);
        self.services.push(Some(Backed {
            name: ObjectName::new("default", format!("service-{number}")),
            cluster_ips: cluster::cluster_ips(self.cluster_ips),
            members: Vec::new(),
            affinity,
            internal_local,
            created_at: self.created_at,
        }));
        self.members.push(Default::default());
        for _ in 0..self.rng.between(1, 4) {
            let node = self.node_near(number);
            let pods: Vec<_> = self.nodes[node].pods.values().copied().collect();
            if let Some(pod) = self.rng.pick(&pods) {
                self.join(*pod, number);
            }
        }
        self.announce_service(number);
    }

    fn announce_service(&mut self, number: usize) {
        let Some(service) = &self.services[number] else { return };
        let (name, object, slices) = (service.name.clone(), service.object(), service.slices());
        if self.truth.state.services.get(&name).is_none_or(|known| **known != object) {
            self.announce(Update::Service(name, Some(object.into())));
        }
        for (name, slice) in slices {
            if self.truth.state.endpoint_slices.get(&name).is_none_or(|known| **known != slice) {
                self.announce(Update::Slice(name, Some(slice.into())));
            }
        }
    }

    fn join(&mut self, pod: usize, service: usize) {
        let Some(backed) = &mut self.services[service] else { return };
        let it = &self.pods[pod];
        let is_member = backed.members.iter().any(|member| member.addresses == it.addresses);
        if !it.is_alive || it.is_host || is_member {
            return;
        }
        let node = self.nodes[it.node].identity.name.clone();
        backed.members.push(Member { addresses: it.addresses, node, condition: Condition::Ready });
        self.members[service].insert(pod);
    }

    fn new_backend(&mut self, node: usize, service: usize) {
        if !self.nodes[node].is_member {
            return;
        }
        let pod = self.add_pod(node);
        self.join(pod, service);
        self.say(|| format!("pod {pod} on node {node} joins service {service}"));
        self.announce_service(service);
    }

    fn any_member(&mut self, service: usize) -> Option<(usize, usize)> {
        let members = &self.services[service].as_ref()?.members;
        let index = self.rng.below(members.len());
        let addresses = members.get(index)?.addresses;
        let pod = self.members[service].iter().find(|pod| self.pods[**pod].addresses == addresses)?;
        Some((index, *pod))
    }

    fn set_condition(&mut self, service: usize, index: usize, condition: Condition) {
        let service = self.services[service].as_mut();
        if let Some(member) = service.and_then(|service| service.members.get_mut(index)) {
            member.condition = condition;
        }
    }

    fn retire_backend(&mut self, service: usize) {
        let Some((index, pod)) = self.any_member(service) else { return };
        self.set_condition(service, index, Condition::Terminating);
        self.say(|| format!("pod {pod} of service {service} is terminating"));
        self.announce_service(service);
        let grace = self.rng.duration(Duration::from_secs(2), Duration::from_secs(8));
        self.schedule.after(grace, Event::EndPod(pod));
    }

    fn kill_backend(&mut self, service: usize) {
        if let Some((_, pod)) = self.any_member(service) {
            self.end_pod(pod);
        }
    }

    fn flip_backend(&mut self, service: usize) {
        let Some((index, pod)) = self.any_member(service) else { return };
        let before = self.services[service].as_ref().map(|service| service.members[index].condition);
        let after = match before {
            Some(Condition::Ready) => Condition::Unready,
            Some(Condition::Unready) => Condition::Ready,
            _ => return,
        };
        self.set_condition(service, index, after);
        self.say(|| format!("pod {pod} of service {service} is {after:?}"));
        self.announce_service(service);
    }

    /// A pod ends, and its endpoints with it.
    pub fn end_pod(&mut self, number: usize) {
        if !self.pods[number].is_alive {
            return;
        }
        self.pods[number].is_alive = false;
        let (addresses, node) = (self.pods[number].addresses, self.pods[number].node);
        self.nodes[node].pods.retain(|_, pod| *pod != number);
        self.say(|| format!("pod {number} on node {node} ends"));
        for service in 0..self.services.len() {
            let Some(backed) = &mut self.services[service] else { continue };
            let before = backed.members.len();
            backed.members.retain(|member| member.addresses != addresses);
            if backed.members.len() < before {
                self.announce_service(service);
            }
        }
        let members = &self.members;
        self.flows.excuse("a pod of it has ended", |flow| {
            flow.client == number
                || flow.target == Target::Pod(number)
                || flow.server == Some(number)
                || flow.server.is_none() && is_of(flow, |service| members[service].contains(&number))
        });
    }

    fn delete_service(&mut self, number: usize) {
        let Some(service) = self.services[number].take() else { return };
        self.say(|| format!("service {number} is deleted"));
        for (name, _) in service.slices() {
            self.announce(Update::Slice(name, None));
        }
        self.announce(Update::Service(service.name, None));
        self.excuse_unserved(number);
        self.add_service();
    }

    fn move_vip(&mut self, number: usize) {
        self.cluster_ips += 1;
        let addresses = cluster::cluster_ips(self.cluster_ips);
        let Some(service) = &mut self.services[number] else { return };
        service.cluster_ips = addresses;
        self.say(|| format!("service {number} has another VIP"));
        self.announce_service(number);
        self.excuse_unserved(number);
    }

    /// UDP follows the service, and a TCP connection that has not come through never will.
    fn excuse_unserved(&mut self, number: usize) {
        let is_hit = |flow: &Flow| flow.server.is_none() || flow.key.protocol == Protocol::UDP;
        self.flows.excuse("its VIP is gone", |flow| is_of(flow, |service| service == number) && is_hit(flow));
    }

    fn change_affinity(&mut self, number: usize) {
        let Some(service) = &mut self.services[number] else { return };
        service.affinity = match service.affinity {
            Some(_) => None,
            None => Some(Duration::from_secs(5)),
        };
        self.announce_service(number);
    }

    fn restart(&mut self, number: usize) {
        let workers = self.rng.between(1, 3);
        let is_synced = self.rng.chance(700);
        self.nodes[number].workers = workers;
        self.say(|| format!("node {number} starts anew with {workers} workers, synced: {is_synced}"));
        self.start(number, is_synced);
        let pods = &self.pods;
        self.flows.excuse("its node has forgotten it", |flow| pods[flow.client].node == number);
    }

    /// The node comes back as another: new pods, new MAC, another range, and perhaps the address of a third.
    fn readdress(&mut self, number: usize) {
        self.say(|| format!("node {number} comes back with other addresses"));
        self.end_pods_of(number);
        let fresh = cluster::underlay_address(1_000 + self.identities);
        let identity = self.new_identity(number, fresh);
        let old = self.nodes[number].identity.underlay;
        self.move_machine(number, identity);
        // Its old address may be somebody else's at once.
        let other = self.rng.below(self.nodes.len());
        if other != number && self.rng.chance(500) && self.nodes[other].is_member {
            self.end_pods_of(other);
            let identity = self.new_identity(other, old);
            self.move_machine(other, identity);
            self.begin_anew(other);
        }
        self.begin_anew(number);
    }

    fn begin_anew(&mut self, number: usize) {
        self.nodes[number].is_member = true;
        self.nodes[number].next_pod = 0;
        for _ in 0..=self.scale.pods_per_node {
            let pod = self.add_pod(number);
            let service = self.service_near(number);
            self.join(pod, service);
            self.announce_service(service);
        }
        self.register(number);
        self.start(number, true);
    }

    fn end_pods_of(&mut self, number: usize) {
        let pods: Vec<_> = self.nodes[number].pods.values().copied().collect();
        pods.into_iter().for_each(|pod| self.end_pod(pod));
    }

    fn leave_or_join(&mut self, number: usize) {
        if self.nodes[number].is_member {
            self.say(|| format!("node {number} leaves"));
            self.end_pods_of(number);
            self.nodes[number].is_member = false;
            self.nodes[number].process = None;
            let name = self.nodes[number].identity.name.clone();
            self.announce(Update::Node(name, None));
        } else {
            self.say(|| format!("node {number} joins again"));
            let underlay = self.nodes[number].identity.underlay;
            let identity = self.new_identity(number, underlay);
            self.move_machine(number, identity);
            self.begin_anew(number);
        }
    }

    fn steer(&mut self, number: usize) {
        let key = self.rng.number();
        if let Some(process) = &mut self.nodes[number].process {
            process.steer(key);
        }
    }

    fn disturb(&mut self, number: usize) {
        let faults = Faults {
            lost: self.rng.below(100) as u32,
            repeated: self.rng.below(100) as u32,
            late: self.rng.below(100) as u32,
            forged: self.rng.below(60) as u32,
            max_len: self.rng.chance(200).then_some(600),
        };
        self.network.faults.insert(self.nodes[number].identity.underlay, faults);
    }

    fn cut(&mut self, number: usize) {
        let other = self.rng.below(self.nodes.len());
        let (one, other) = (self.nodes[number].identity.underlay, self.nodes[other].identity.underlay);
        self.say(|| format!("{one} and {other} are cut apart, and all others joined"));
        self.network.cut = [(one, other), (other, one)].into();
    }

    fn cut_off(&mut self, number: usize) {
        self.nodes[number].is_cut_off ^= true;
        let is_cut_off = self.nodes[number].is_cut_off;
        self.say(|| format!("node {number} is cut off from the API server: {is_cut_off}"));
        if !is_cut_off {
            self.schedule.after(Duration::from_millis(100), Event::Relist(number));
        }
    }

    /// A node hears again of what has long been otherwise, or that something is no more.
    fn tell_again(&mut self, number: usize) {
        let names: Vec<_> = self.truth.state.endpoint_slices.keys().cloned().collect();
        let nodes: Vec<_> = self.truth.state.nodes.keys().cloned().collect();
        if let (Some(slice), Some(node)) = (self.rng.pick(&names).cloned(), self.rng.pick(&nodes).cloned()) {
            self.say(|| format!("node {number} hears that {slice} and {node} are no more, which is not so"));
            self.tell(number, &Update::Slice(slice, None));
            self.tell(number, &Update::Node(node, None));
        }
    }

    /// One pod opens many flows that it never uses.
    fn flood(&mut self, node: usize, service: usize) {
        let pods: Vec<_> = self.nodes[node].pods.values().copied().collect();
        let vip = self.services[service].as_ref().map(|service| service.cluster_ips[0]);
        let (Some(&pod), Some(vip)) = (self.rng.pick(&pods), vip) else { return };
        let packets = self.rng.between(20, 600);
        self.say(|| format!("pod {pod} on node {node} floods {vip} with {packets} packets"));
        for packet in 0..packets {
            let protocol = if self.rng.chance(500) { Protocol::TCP } else { Protocol::UDP };
            let key = FlowKey {
                src: self.pods[pod].address_like(vip),
                dst: vip,
                protocol,
                src_port: 40_000 + (mixed(self.rng.number()) % 20_000) as u16,
                dst_port: VIP_PORT,
            };
            let bytes = match protocol {
                Protocol::TCP => tcp(&key, Tcp::Syn, b""),
                _ => udp(&key, b"flood"),
            };
            let delay = Duration::from_micros(50 * packet as u64);
            self.schedule.after(delay, Event::FromPod(pod, bytes));
        }
    }

    /// A pod opens a flow, and another one does later.
    pub fn open_any_flow(&mut self) {
        if self.is_quiet {
            return;
        }
        let every = self.scale.flow_every;
        let delay = self.rng.duration(every / 4, every * 2);
        self.schedule.after(delay, Event::OpenFlow);
        let nodes = self.busy_nodes();
        let Some(&node) = self.rng.pick(&nodes) else { return };
        let pods: Vec<_> = self.nodes[node].pods.values().copied().collect();
        let Some(&client) = self.rng.pick(&pods) else { return };
        let protocol = if self.rng.chance(500) { Protocol::TCP } else { Protocol::UDP };
        let is_long = self.rng.chance(200) && self.scale.awake.is_none();
        let length = if is_long { 60 } else { self.rng.between(1, 8) };
        let family = self.rng.below(2);
        if self.rng.chance(700) {
            let number = self.service_near(node);
            let Some(service) = &self.services[number] else { return };
            let addr = SocketAddr::new(service.cluster_ips[family], VIP_PORT);
            self.open(client, Target::Service(number), addr, protocol, length);
        } else {
            let Some(&node) = self.rng.pick(&nodes) else { return };
            let pods: Vec<_> = self.nodes[node].pods.values().copied().collect();
            let Some(&target) = self.rng.pick(&pods) else { return };
            let pod = &self.pods[target];
            if pod.is_alive && !pod.is_host && target != client {
                let addr = pod_addr(pod.addresses[family], protocol);
                self.open(client, Target::Pod(target), addr, protocol, length);
            }
        }
    }
}

/// Where a pod serves a protocol.
pub fn pod_addr(addr: std::net::IpAddr, protocol: Protocol) -> SocketAddr {
    SocketAddr::new(addr, if protocol == Protocol::TCP { TCP_PORT } else { UDP_PORT })
}

fn is_of(flow: &Flow, is_hit: impl Fn(usize) -> bool) -> bool {
    matches!(flow.target, Target::Service(service) if is_hit(service))
}
