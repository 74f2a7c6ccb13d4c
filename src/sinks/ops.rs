//! Owns the operator's endpoint: metrics, probes and the status. Read-only: nothing here changes anything.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::watch;
use tokio::time::Instant;

use super::guard::Guard;
use super::metrics::{CONTENT_TYPE, Metrics};
use crate::model::Moment;
use crate::model::status::Status;

/// What the endpoint is made of.
pub struct Ops {
    pub status: watch::Receiver<Arc<Status>>,
    pub metrics: Arc<Metrics>,
    /// For what tells more than metrics and probes do.
    pub guard: Guard,
    /// When the loop began.
    pub start: Instant,
}

/// The routes of the endpoint.
pub fn router(ops: Ops) -> Router {
    let ops = Arc::new(ops);
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .route("/startupz", get(readyz))
        .route("/status", get(status))
        .layer(middleware::from_fn_with_state(ops.clone(), check))
        .with_state(ops)
}

/// Host and Origin are checked everywhere, the token only where more than metrics and probes is told.
async fn check(State(ops): State<Arc<Ops>>, request: Request, next: Next) -> Response {
    let open = request.uri().path() != "/status";
    let guard = if open { ops.guard.without_token() } else { ops.guard.clone() };
    match guard.check(request.headers()) {
        Ok(()) => next.run(request).await,
        Err((status, message)) => (status, format!("{message}\n")).into_response(),
    }
}

async fn metrics(State(ops): State<Arc<Ops>>) -> Response {
    match ops.metrics.scrape() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn readyz(State(ops): State<Arc<Ops>>, _: HeaderMap) -> Response {
    if ops.status.borrow().ready {
        "ok\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the sources have not been read yet, or the sidecar is stopping\n")
            .into_response()
    }
}

async fn status(State(ops): State<Arc<Ops>>) -> Response {
    let status = ops.status.borrow().as_ref().clone().at(Moment::new(ops.start.elapsed()));
    match serde_json::to_string_pretty(&status) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
