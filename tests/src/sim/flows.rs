//! The flows that pods open, and what has become of each.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use windlass_dataplane::time::Instant;
use windlass_dataplane::wire::flow::{FlowKey, Protocol};

use crate::packets;

/// What a client wants to reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A pod itself.
    Pod(usize),
    /// A service, by its number.
    Service(usize),
}

/// How far a flow has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Under way.
    Open,
    /// Over: what was asked was answered.
    Done,
    /// Ended early.
    Ended,
}

/// One flow.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The pod that opened it.
    pub client: usize,
    /// As the client sends it.
    pub key: FlowKey,
    /// What it is for.
    pub target: Target,
    /// The pod that serves it, once known.
    pub server: Option<usize>,
    /// How far it has come.
    pub state: State,
    /// Why it may fail.
    pub excuse: Option<&'static str>,
    /// Whether the cluster was left alone when it was opened.
    pub is_probe: bool,
    /// When it was opened.
    pub opened_at: Instant,
    /// UDP: questions asked, answered, and to be answered.
    pub asked: u32,
    /// UDP: the question that waits for its answer.
    pub answered: u32,
    /// UDP: questions in all.
    pub questions: u32,
    /// UDP: from one question to the next.
    pub pause: Duration,
}

/// All flows, by number.
#[derive(Debug, Default)]
pub struct Flows {
    flows: BTreeMap<u64, Flow>,
    opened: u64,
    /// Flows that ended well.
    pub done: u64,
    /// Flows that ended early with an excuse.
    pub excused: u64,
}

/// Questions of one number that are asked before a UDP flow gives up.
const TRIES: u32 = 40;

impl Flows {
    /// Adds a flow and returns its number.
    pub fn open(&mut self, flow: Flow) -> u64 {
        self.opened += 1;
        self.flows.insert(self.opened, flow);
        self.opened
    }

    /// Flows opened so far.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// The flow of that number, while it is remembered.
    pub fn get_mut(&mut self, number: u64) -> Option<&mut Flow> {
        self.flows.get_mut(&number)
    }

    /// All that are remembered.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Flow)> {
        self.flows.iter().map(|(number, flow)| (*number, flow))
    }

    /// Excuses the open flows that `is_hit` names.
    pub fn excuse(&mut self, why: &'static str, is_hit: impl Fn(&Flow) -> bool) {
        for flow in self.flows.values_mut().filter(|flow| flow.state == State::Open) {
            if flow.excuse.is_none() && is_hit(flow) {
                flow.excuse = Some(why);
            }
        }
    }

    /// Ends a flow.
    pub fn end(&mut self, number: u64, state: State) {
        let Some(flow) = self.flows.get_mut(&number).filter(|flow| flow.state == State::Open) else { return };
        flow.state = state;
        self.done += u64::from(state == State::Done);
        self.excused += u64::from(state != State::Done);
    }

    /// The flows that should have ended well, and have not.
    pub fn unfinished(&self) -> impl Iterator<Item = (u64, &Flow)> {
        self.iter().filter(|(_, flow)| flow.state != State::Done && flow.excuse.is_none())
    }
}

impl Flow {
    /// Whether it has taken `port` of the pod `client`.
    pub fn holds(&self, client: usize, port: u16) -> bool {
        self.client == client && self.key.src_port == port
    }

    /// The next UDP question, if there is one yet to be answered.
    pub fn question(&mut self, number: u64) -> Option<Vec<u8>> {
        let gives_up = self.asked >= self.questions + TRIES;
        if self.state != State::Open || self.answered >= self.questions || gives_up {
            return None;
        }
        self.asked += 1;
        Some(packets::udp(&self.key, &message(b'Q', number, self.answered)))
    }

    /// Where it goes, as its client sees it.
    pub fn target_addr(&self) -> SocketAddr {
        SocketAddr::new(self.key.dst, self.key.dst_port)
    }

    /// What it is, for people.
    pub fn describe(&self, number: u64) -> String {
        let protocol = if self.key.protocol == Protocol::TCP { "TCP" } else { "UDP" };
        format!(
            "flow {number} ({protocol} {} from pod {} to {:?}, server {:?}, opened at {:.3} s, {} of {} answered, asked {} times): {:?}",
            self.key,
            self.client,
            self.target,
            self.server,
            self.opened_at.as_nanos() as f64 / 1e9,
            self.answered,
            self.questions,
            self.asked,
            self.state
        )
    }
}

/// A UDP payload: what it is, whose, which, and filling.
pub fn message(kind: u8, flow: u64, question: u32) -> Vec<u8> {
    let mut payload = vec![kind];
    payload.extend(flow.to_be_bytes());
    payload.extend(question.to_be_bytes());
    let filling = (flow as usize * 37 + question as usize * 101) % 900;
    payload.resize(payload.len() + filling, kind);
    payload
}

/// Takes a UDP payload apart.
pub fn read_message(payload: &[u8]) -> Option<(u8, u64, u32)> {
    let (kind, rest) = payload.split_first()?;
    let (flow, rest) = rest.split_first_chunk()?;
    let question = rest.first_chunk()?;
    Some((*kind, u64::from_be_bytes(*flow), u32::from_be_bytes(*question)))
}
