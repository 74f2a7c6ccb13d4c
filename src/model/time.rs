//! Decides how time is told to pure code: as a moment since the program's start.

use std::ops::Add;
use std::time::Duration;

/// A point in time, as the duration since the loop began. Pure functions get it passed in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Hash)]
pub struct Moment(Duration);

impl Moment {
    /// The moment at which the loop began.
    pub const START: Moment = Moment(Duration::ZERO);

    /// The moment that lies `since_start` after the loop's beginning.
    pub const fn new(since_start: Duration) -> Self {
        Moment(since_start)
    }

    /// How long after the loop's beginning this is.
    pub const fn since_start(self) -> Duration {
        self.0
    }

    /// The time from `earlier` to this moment, or zero when `earlier` is later.
    pub fn since(self, earlier: Moment) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Moment {
    type Output = Moment;

    fn add(self, by: Duration) -> Moment {
        Moment(self.0.saturating_add(by))
    }
}
