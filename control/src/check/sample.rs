//! What rules do to a packet that could come.

use std::net::IpAddr;

use super::rules::{Action, ChainName, Condition, Rules};

/// Chains that call each other deeper than this are not followed: the kernel refuses more than 16.
const MAX_DEPTH: usize = 16;

/// The first packet of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packet<'a> {
    pub(super) source: IpAddr,
    pub(super) destination: IpAddr,
    /// The interface it comes by.
    pub(super) from: &'a str,
    /// The interface it leaves by.
    pub(super) to: &'a str,
}

/// What a chain does with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Accepted,
    Dropped,
    Masqueraded,
    Undecided,
}

/// An outcome, and whether a rule that is not understood may have accepted the packet before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    pub(super) outcome: Outcome,
    pub(super) may_accept: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Yes,
    No,
    Maybe,
}

/// Whether rules of that family see the packet.
pub(super) fn sees(family: &str, packet: &Packet<'_>) -> bool {
    match family {
        "inet" => true,
        "ip" | "legacy-ip" => packet.source.is_ipv4(),
        "ip6" | "legacy-ip6" => packet.source.is_ipv6(),
        _ => false,
    }
}

/// Follows a packet through a chain and those it calls.
pub(super) fn follow(rules: &Rules, name: &ChainName, packet: &Packet<'_>) -> Verdict {
    walk(rules, name, packet, 0)
}

fn walk(rules: &Rules, name: &ChainName, packet: &Packet<'_>, depth: usize) -> Verdict {
    let mut verdict = Verdict { outcome: Outcome::Undecided, may_accept: false };
    let Some(chain) = rules.chains.get(name).filter(|_| depth < MAX_DEPTH) else { return verdict };
    for rule in &chain.rules {
        let holds = all(&rule.conditions, packet);
        if holds == Holds::No {
            continue;
        }
        let sure = holds == Holds::Yes;
        let outcome = match &rule.action {
            Action::Accept => Outcome::Accepted,
            Action::Drop => Outcome::Dropped,
            Action::Masquerade => Outcome::Masqueraded,
            Action::Return if sure => return verdict,
            Action::Return | Action::Other => continue,
            Action::Jump(target) | Action::Goto(target) => {
                let called = ChainName { chain: target.clone(), ..name.clone() };
                let called = walk(rules, &called, packet, depth + 1);
                verdict.may_accept |= called.may_accept;
                if sure && called.outcome == Outcome::Undecided && matches!(rule.action, Action::Goto(_)) {
                    return verdict;
                }
                called.outcome
            }
        };
        match outcome {
            Outcome::Undecided => {}
            decided if sure => return Verdict { outcome: decided, ..verdict },
            Outcome::Accepted => verdict.may_accept = true,
            _ => {}
        }
    }
    verdict
}

fn all(conditions: &[Condition], packet: &Packet<'_>) -> Holds {
    let mut all = Holds::Yes;
    for condition in conditions {
        match holds(condition, packet) {
            Holds::No => return Holds::No,
            Holds::Maybe => all = Holds::Maybe,
            Holds::Yes => {}
        }
    }
    all
}

fn holds(condition: &Condition, packet: &Packet<'_>) -> Holds {
    let is = match condition {
        Condition::Source(nets, negated) => nets.iter().any(|net| net.contains(&packet.source)) != *negated,
        Condition::Destination(nets, negated) => {
            nets.iter().any(|net| net.contains(&packet.destination)) != *negated
        }
        Condition::From(names, negated) => matches(names, packet.from) != *negated,
        Condition::To(names, negated) => matches(names, packet.to) != *negated,
        Condition::Established => false,
        Condition::Other => return Holds::Maybe,
    };
    if is { Holds::Yes } else { Holds::No }
}

/// nft writes a prefix of names with a star at its end, iptables with a plus.
fn matches(names: &[String], interface: &str) -> bool {
    names.iter().any(|name| match name.strip_suffix(['*', '+']) {
        Some(prefix) => interface.starts_with(prefix),
        None => name == interface,
    })
}
