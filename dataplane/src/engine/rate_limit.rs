//! A rate limit on what the engine says by itself (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 (f)).

use crate::time::Instant;

/// A token bucket over the responses of one worker.
#[derive(Debug)]
pub(super) struct RateLimit {
    tokens: u32,
    refilled_at: Instant,
}

/// Responses a second and worker, and the burst: enough for every refusal a healthy cluster sees, little
/// enough that a scan does not double its own traffic.
const RESPONSES_PER_SECOND: u32 = 1_000;

impl Default for RateLimit {
    fn default() -> Self {
        Self { tokens: RESPONSES_PER_SECOND, refilled_at: Instant::ZERO }
    }
}

impl RateLimit {
    /// Takes a token, if there is one.
    pub(super) fn allow(&mut self, now: Instant) -> bool {
        let earned = now.since(self.refilled_at).as_millis() * u128::from(RESPONSES_PER_SECOND) / 1_000;
        if earned > 0 {
            self.tokens = RESPONSES_PER_SECOND.min(self.tokens.saturating_add(earned.min(1 << 30) as u32));
            self.refilled_at = now;
        }
        let allowed = self.tokens > 0;
        self.tokens = self.tokens.saturating_sub(1);
        allowed
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_limit_refills_with_time() {
        let mut limit = RateLimit::default();
        let burst = (0..2_000).filter(|_| limit.allow(Instant::ZERO)).count();
        assert_eq!(burst, RESPONSES_PER_SECOND as usize);
        let later = Instant::ZERO + Duration::from_millis(100);
        assert_eq!((0..2_000).filter(|_| limit.allow(later)).count(), 100);
    }
}
