//! The answers: Prometheus' text format, health, and counters as JSON.

use std::fmt::Write;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use super::{Readings, Sample, SampleKind, questions};

/// What anyone may ask over TCP.
pub(super) fn public(readings: Arc<dyn Readings>) -> Router {
    Router::new().route("/metrics", get(metrics)).route("/healthz", get(health)).with_state(readings)
}

/// What only the owner of the socket may ask.
pub fn details(readings: Arc<dyn Readings>) -> Router {
    let router = Router::new().route("/counters", get(counters)).route("/healthz", get(health));
    questions::add(router).with_state(readings)
}

async fn metrics(State(readings): State<Arc<dyn Readings>>) -> impl IntoResponse {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    ([(header::CONTENT_TYPE, kind)], exposition(&readings.samples()))
}

async fn health(State(readings): State<Arc<dyn Readings>>) -> impl IntoResponse {
    match readings.illness() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

async fn counters(State(readings): State<Arc<dyn Readings>>) -> impl IntoResponse {
    let sample = |sample: &Sample| {
        let labels: serde_json::Map<_, _> =
            sample.labels.iter().map(|(key, value)| ((*key).to_owned(), value.as_str().into())).collect();
        let name = format!("{}{}", sample.name, sample.kind.suffix());
        serde_json::json!({"name": name, "labels": labels, "value": sample.value})
    };
    let samples = readings.samples();
    let body: Vec<_> = samples.iter().filter(|each| each.kind != SampleKind::Bucket).map(sample).collect();
    ([(header::CONTENT_TYPE, "application/json")], serde_json::Value::from(body).to_string())
}

/// Prometheus' text exposition format, version 0.0.4.
pub(super) fn exposition(samples: &[Sample]) -> String {
    let mut text = String::new();
    let mut last = "";
    for sample in samples {
        if sample.name != last {
            last = sample.name;
            let kind = sample.kind.name();
            // Writing to a String cannot fail.
            let _ = writeln!(text, "# HELP {last} {}\n# TYPE {last} {kind}", sample.help);
        }
        let labels: Vec<_> =
            sample.labels.iter().map(|(key, value)| format!("{key}=\"{}\"", escape(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let suffix = sample.kind.suffix();
        let _ = match sample.kind {
            SampleKind::Nanoseconds | SampleKind::Sum => {
                writeln!(text, "{last}{suffix}{labels} {}", sample.value as f64 / 1e9)
            }
            _ => writeln!(text, "{last}{suffix}{labels} {}", sample.value),
        };
    }
    text
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
