//! What only the owner of the socket may ask: tables, connections, drops, the device, a packet's fate.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Readings;
use crate::capture::live;
use crate::inspect::Inspection;
use crate::inspect::connections::{Connections, Filter};
use crate::inspect::rows::Tables;
use crate::inspect::trace::{self, Request};

/// The longest question, in bytes: a packet of 64 KB as hex, and some words.
const MAX_QUESTION_LEN: usize = 160 << 10;

type Node = State<Arc<dyn Readings>>;

/// Adds the questions.
pub(super) fn add(router: Router<Arc<dyn Readings>>) -> Router<Arc<dyn Readings>> {
    router
        .route("/tables", get(tables))
        .route("/device", get(device))
        .route("/connections", post(connections))
        .route("/trace", post(trace_packet))
        .route("/capture", post(capture))
        .layer(DefaultBodyLimit::max(MAX_QUESTION_LEN))
}

async fn tables(State(readings): Node) -> Response {
    with(&readings, |node| answer(&Tables::of(node)))
}

async fn device(State(readings): Node) -> Response {
    with(&readings, |node| answer(&node.device))
}

async fn connections(State(readings): Node, body: Bytes) -> Response {
    match question::<Filter>(&body) {
        Ok(filter) => with(&readings, |node| answer(&Connections::of(node, &filter))),
        Err(refusal) => *refusal,
    }
}

async fn trace_packet(State(readings): Node, body: Bytes) -> Response {
    let request = match question::<Request>(&body) {
        Ok(request) => request,
        Err(refusal) => return *refusal,
    };
    with(&readings, |node| match trace::trace(node, &request) {
        Ok(report) => answer(&report),
        Err(error) => refuse(StatusCode::BAD_REQUEST, &error.to_string()),
    })
}

async fn capture(State(readings): Node, body: Bytes) -> Response {
    let question = match question::<live::Question>(&body) {
        Ok(question) => question,
        Err(refusal) => return *refusal,
    };
    let Some(watched) = readings.watched() else { return stopping() };
    with(&readings, |node| match live::answer(&watched, &node.origin.settings, &question) {
        Ok(packets) => answer(&packets),
        Err(why) => refuse(StatusCode::BAD_REQUEST, &why),
    })
}

fn with(readings: &Arc<dyn Readings>, answer: impl FnOnce(&Inspection) -> Response) -> Response {
    match readings.inspection() {
        Some(node) => answer(&node),
        None => stopping(),
    }
}

fn stopping() -> Response {
    refuse(StatusCode::SERVICE_UNAVAILABLE, "windlass is stopping")
}

fn question<T: DeserializeOwned>(body: &[u8]) -> Result<T, Box<Response>> {
    serde_json::from_slice(body)
        .map_err(|error| format!("the question is not understood: {error}"))
        .map_err(|why| Box::new(refuse(StatusCode::BAD_REQUEST, &why)))
}

fn answer(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([(header::CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

fn refuse(status: StatusCode, why: &str) -> Response {
    (status, format!("{why}\n")).into_response()
}
