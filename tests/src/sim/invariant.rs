//! What must hold at every step.

use std::fmt;

/// An invariant, named as the requirement behind it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Invariant {
    /// No packet reaches a pod that it is not for.
    RightPod,
    /// No packet crosses from one VNI, or from somebody who is no VTEP or not the source's, into the overlay.
    RightNetwork,
    /// A datagram goes to the VTEP behind which its destination is.
    RightVtep,
    /// A reply carries its VIP.
    ReplyCarriesVip,
    /// An established flow keeps its backend while that serves.
    KeepsBackend,
    /// A new flow goes to a backend that its service has.
    ServedBackend,
    /// Nothing that is for a VIP leaves untranslated, and what is for a pod leaves unchanged.
    RightTranslation,
    /// No two flows of one backend share a translated tuple.
    NeverCrossed,
    /// A service with backends refuses nobody.
    NotRefused,
    /// received + generated = sent + dropped, and all of it was seen.
    Sums,
    /// Connections are bounded, and gone when they have timed out.
    Memory,
    /// After quiet everything that should work does.
    Converges,
}

/// An invariant that did not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub invariant: Invariant,
    /// How.
    pub text: String,
}

impl Violation {
    /// `invariant` does not hold, as `text` tells.
    pub fn new(invariant: Invariant, text: impl Into<String>) -> Self {
        Self { invariant, text: text.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}: {}", self.invariant, self.text)
    }
}
