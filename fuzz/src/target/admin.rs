//! Any question to the admin socket.
//!
//! Input: which question, whether it is asked with POST, then the body.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Instant;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use serde_json::Value;
use tokio::runtime::{Builder, Runtime};
use tower_service::Service;
use windlass_control::admin::{Readings, Sample, details};
use windlass_control::capture::live::Watched;
use windlass_control::inspect::Inspection;

use crate::Seed;
use crate::input::Input;
use crate::target::trace;

const PATHS: [&str; 8] = [
    "/trace",
    "/connections",
    "/tables",
    "/device",
    "/counters",
    "/healthz",
    "/no-such-question",
    "/capture",
];

/// The longest answer that is read.
const MAX_ANSWER_LEN: usize = 16 << 20;

struct Fixed;

impl Readings for Fixed {
    fn samples(&self) -> Vec<Sample> {
        Vec::new()
    }

    fn watched(&self) -> Option<Watched> {
        Some(Watched { tap: Arc::default(), origin: Instant::now() })
    }

    fn inspection(&self) -> Option<Inspection> {
        Some(trace::inspection())
    }
}

thread_local! {
    static RUNTIME: RefCell<Runtime> = RefCell::new(runtime());
}

fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap_or_else(|error| unreachable!("{error}"))
}

/// Every question has an answer: JSON, or a refusal that says why.
///
/// # Panics
/// When it has none.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let (path, is_post) = (input.choose(&PATHS), input.flag());
    let request = Request::builder()
        .method(if is_post { "POST" } else { "GET" })
        .uri(path)
        .body(Body::from(input.rest().to_vec()))
        .unwrap_or_else(|error| unreachable!("{error}"));
    let (status, body) = RUNTIME.with_borrow(|runtime| runtime.block_on(answer(request)));
    match status {
        StatusCode::OK if path == "/healthz" => assert_eq!(body, b"ok\n"),
        StatusCode::OK => assert!(serde_json::from_slice::<Value>(&body).is_ok(), "{path}: no JSON"),
        StatusCode::BAD_REQUEST => assert!(!body.is_empty(), "{path}: refused without a reason"),
        StatusCode::NOT_FOUND => assert_eq!(path, "/no-such-question"),
        StatusCode::METHOD_NOT_ALLOWED => {
            assert_eq!(is_post, !matches!(path, "/trace" | "/connections" | "/capture"), "{path}");
        }
        StatusCode::PAYLOAD_TOO_LARGE => assert!(data.len() > 100_000),
        other => unreachable!("{path}: {other}"),
    }
}

async fn answer(request: Request<Body>) -> (StatusCode, Vec<u8>) {
    let mut router = details(Arc::new(Fixed));
    let Ok(response) = router.call(request).await;
    let status = response.status();
    let body = to_bytes(response.into_body(), MAX_ANSWER_LEN).await;
    (status, body.unwrap_or_else(|error| unreachable!("{error}")).to_vec())
}

/// Each question, and some that cannot be understood.
pub fn seeds() -> Vec<Seed> {
    let seed = |name, path: u8, body: &str| {
        (name, [&[path, u8::from(path < 2 || path == 7)], body.as_bytes()].concat())
    };
    vec![
        seed("trace-text", 0, r#"{"flow":"udp 10.244.0.14:40000 > 10.96.0.10:53"}"#),
        seed(
            "trace-hex",
            0,
            r#"{"hex":"0x4500","arrival":{"from":"192.168.1.51","vni":4096,"mac":"ce:7a:e5:af:6a:e9","tos":3}}"#,
        ),
        seed("trace-nothing", 0, "{}"),
        seed(
            "trace-vni",
            0,
            r#"{"flow":"icmp 10.0.0.1 > 10.0.0.2","arrival":{"from":"::1","vni":16777216}}"#,
        ),
        seed("connections", 1, r#"{"addr":"10.244.0.14","service":"dns","state":"established"}"#),
        seed("connections-unknown-key", 1, r#"{"port":5}"#),
        seed("tables", 2, ""),
        seed("device", 3, ""),
        seed("counters", 4, ""),
        seed("health", 5, ""),
        seed("another", 6, ""),
        seed(
            "capture",
            7,
            r#"{"owner":1,"inner":true,"snap_len":64,"filter":"tcp host 10.244.0.14 port 80"}"#,
        ),
        seed("capture-ends", 7, r#"{"owner":1,"last":true}"#),
        seed("capture-filter", 7, r#"{"filter":"host"}"#),
    ]
}
