//! What the tests drive the binary with.

pub mod agent;
pub mod peers;
pub mod process;
pub mod sidecar;

use std::future::Future;
use std::time::Duration;

use tokio::time::Instant;

/// How long a condition may take to come about before a test gives up.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Looks until `look` gives something.
///
/// # Panics
/// When it never does; `what` says what was awaited.
pub async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "it never came: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
