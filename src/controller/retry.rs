//! Decides how long a failed server waits: at once the first time, then a random time under a doubling cap.

use std::time::Duration;

use backoff::{BackoffBuilder, ExponentialBuilder};

/// The longest wait between two attempts.
pub const MAX_DELAY: Duration = Duration::from_secs(60);

/// After this long connected, a server's failures are forgotten.
pub const STABLE_AFTER: Duration = Duration::from_secs(60);

/// How often a server has failed since it was last stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retry {
    failures: u32,
}

impl Retry {
    /// How many attempts or connections have failed since the last reset.
    pub fn failures(self) -> u32 {
        self.failures
    }

    /// Counts one more failure and gives the wait before the next attempt: none the first time, then
    /// `roll` (in 0..1) of `min(60 s, 2^(n-2) s)` before the n-th. All of it is random, so that servers that
    /// failed together do not come back together.
    pub fn next_delay(&mut self, roll: f64) -> Duration {
        self.failures = self.failures.saturating_add(1);
        let Some(step) = self.failures.checked_sub(2) else { return Duration::ZERO };
        // The sequence stands at its cap from the seventh step on.
        let cap = ExponentialBuilder::new()
            .with_min_delay(Duration::from_secs(1))
            .with_max_delay(MAX_DELAY)
            .with_factor(2.0)
            .without_max_times()
            .build()
            .nth(step.min(7) as usize)
            .unwrap_or(MAX_DELAY);
        cap.mul_f64(roll.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_retry_is_at_once_and_the_caps_double_up_to_a_minute() {
        let mut retry = Retry::default();
        let waits: Vec<u64> = (0..10).map(|_| retry.next_delay(1.0).as_secs()).collect();
        assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(retry.failures(), 10);
    }

    #[test]
    fn the_wait_is_any_part_of_the_cap() {
        let mut retry = Retry { failures: 4 };
        assert_eq!(retry.next_delay(0.0), Duration::ZERO);
        let mut retry = Retry { failures: 4 };
        assert_eq!(retry.next_delay(0.5), Duration::from_secs(4));
    }
}
