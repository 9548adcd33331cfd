//! Where not all nodes fit the machine's memory at a time, they take turns: a window of neighbours moves over the
//! cluster once while it is not left alone. Flows, edits and services stay within it, a node's process starts with the
//! first packet that reaches it there, and ends when others need its room.

use std::time::Duration;

use super::flows::{Flow, Target};
use super::world::World;

/// Where nodes take turns, those that a service's backends are on follow each other.
const NEAR: usize = 3;

impl World {
    /// The nodes whose pods open flows now: all, or half of as many as may run.
    pub fn busy_nodes(&self) -> Vec<usize> {
        let count = self.nodes.len();
        let Some(awake) = self.scale.awake else { return (0..count).collect() };
        let width = awake / 2;
        let turns = count.div_ceil(width) as u128;
        let now = Duration::from_nanos(self.now().as_nanos());
        let turn = (now.as_nanos() * turns / self.scale.active.as_nanos()).min(turns - 1) as usize;
        (turn * width..count.min((turn + 1) * width)).collect()
    }

    /// A service that pods of `node` use.
    pub fn service_near(&mut self, node: usize) -> usize {
        let (services, nodes) = (self.services.len(), self.nodes.len());
        match self.scale.awake {
            Some(_) => (node + nodes * self.rng.below(services / nodes)) % services,
            None => self.rng.below(services),
        }
    }

    /// A node whose pods may serve `service`.
    pub fn node_near(&mut self, service: usize) -> usize {
        let nodes = self.nodes.len();
        match self.scale.awake {
            Some(_) => (service + self.rng.below(NEAR)) % nodes,
            None => self.rng.below(nodes),
        }
    }

    /// Starts the process of a node that takes turns and that a packet has reached, if it is its turn.
    pub fn wake_up(&mut self, number: usize) {
        if self.scale.awake.is_none() || !self.nodes[number].is_member {
            return;
        }
        let count = self.nodes.len();
        let is_busy = self.busy_nodes().into_iter().any(|node| (number + count - node) % count < NEAR);
        match is_busy {
            true => self.start(number, true),
            false => self.excuse_asleep(number),
        }
    }

    /// Ends the process that has had nothing to do for longest, if as many run as may.
    pub fn make_room(&mut self) {
        let Some(awake) = self.scale.awake else { return };
        let running = || self.nodes.iter().enumerate().filter(|(_, node)| node.process.is_some());
        let oldest = running().min_by_key(|(_, node)| node.fed_at).map(|(number, _)| number);
        if let Some(number) = oldest.filter(|_| running().count() >= awake) {
            self.nodes[number].process = None;
            self.excuse_asleep(number);
        }
    }

    fn excuse_asleep(&mut self, number: usize) {
        let (pods, members) = (&self.pods, &self.members);
        let is_there = |pod: usize| pods[pod].node == number;
        self.flows.excuse("a node of it has forgotten it", |flow: &Flow| {
            let may_serve = || match flow.target {
                Target::Pod(pod) => is_there(pod),
                Target::Service(service) => members[service].iter().any(|pod| is_there(*pod)),
            };
            is_there(flow.client) || flow.server.map_or_else(may_serve, is_there)
        });
    }
}
