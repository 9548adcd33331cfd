//! Health as kube-proxy serves it (Kubernetes, pkg/proxy/healthcheck/proxy_health.go): `/healthz` for load
//! balancers, `/livez` for the kubelet, and `/readyz` for the pod.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use super::Readings;

/// What load balancers and kubelets may ask over TCP.
pub(super) fn routes(readings: Arc<dyn Readings>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/livez", get(livez))
        .route("/readyz", get(readyz))
        .with_state(readings)
}

/// Whether this node forwards, changes come through, and the node stays.
async fn healthz(State(readings): State<Arc<dyn Readings>>) -> impl IntoResponse {
    let is_eligible = readings.is_eligible();
    let (is_well, body) = health(&*readings);
    answer(is_well && is_eligible, &Health { node_eligible: Some(is_eligible), ..body })
}

/// Whether this node forwards and changes come through: a restart would mend no node that leaves.
async fn livez(State(readings): State<Arc<dyn Readings>>) -> impl IntoResponse {
    let (is_well, body) = health(&*readings);
    answer(is_well, &body)
}

/// Whether this node forwards.
async fn readyz(State(readings): State<Arc<dyn Readings>>) -> impl IntoResponse {
    match readings.illness() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

/// While all is well, what is known is up to date, whenever it last changed.
fn health(readings: &dyn Readings) -> (bool, Health) {
    let programming = readings.programming();
    let is_well = !programming.is_stuck && readings.illness().is_none();
    let now = SystemTime::now();
    let updated = if is_well { now } else { programming.applied_at };
    let time = |at: SystemTime| Timestamp::try_from(at).unwrap_or_default().to_string();
    (is_well, Health { last_updated: time(updated), current_time: time(now), node_eligible: None })
}

/// The body, its keys in kube-proxy's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Health {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
}

fn answer(is_well: bool, body: &Health) -> impl IntoResponse + use<> {
    let status = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (status, headers, serde_json::to_string(body).unwrap_or_default())
}
