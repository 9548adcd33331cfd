#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use super::*;

struct Fixed;

impl Readings for Fixed {
    fn samples(&self) -> Vec<Sample> {
        let sample = |name, reason: &str, value| Sample {
            name,
            help: "Packets dropped.",
            kind: SampleKind::Counter,
            labels: vec![("reason", reason.to_owned())],
            value,
        };
        vec![sample("windlass_drops_total", "unknown-vni", 3), sample("windlass_drops_total", "a\"b", 4)]
    }
}

fn ask(mut stream: impl Read + Write, path: &str) -> String {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn serve(folder: &Path) -> (Serving, SocketAddr, PathBuf) {
    let path = folder.join("admin.sock");
    let admin = Admin::bind(Some(([127, 0, 0, 1], 0).into()), None, &path).unwrap();
    let addr = admin.metrics_addr().unwrap();
    (admin.serve(Arc::new(Fixed)).unwrap(), addr, path)
}

#[test]
fn metrics_and_health_are_served_over_tcp_and_counters_over_the_socket_only_e11() {
    let folder = tempfile::tempdir().unwrap();
    let (serving, addr, path) = serve(folder.path());
    let metrics = ask(TcpStream::connect(addr).unwrap(), "/metrics");
    assert!(metrics.starts_with("HTTP/1.1 200"), "{metrics}");
    assert!(
        metrics.contains(
            "# TYPE windlass_drops_total counter\nwindlass_drops_total{reason=\"unknown-vni\"} 3\n"
        )
    );
    assert!(metrics.contains("windlass_drops_total{reason=\"a\\\"b\"} 4\n"));
    assert_eq!(metrics.matches("# HELP").count(), 1);
    assert!(ask(TcpStream::connect(addr).unwrap(), "/healthz").ends_with("ok\n"));
    assert!(ask(TcpStream::connect(addr).unwrap(), "/counters").starts_with("HTTP/1.1 404"));

    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let counters = ask(UnixStream::connect(&path).unwrap(), "/counters");
    assert!(
        counters.contains(r#"{"labels":{"reason":"unknown-vni"},"name":"windlass_drops_total","value":3}"#)
    );

    drop(serving);
    assert!(!path.exists());
    assert!(TcpStream::connect(addr).is_err());
}

#[test]
fn silent_clients_do_not_keep_others_waiting_e11() {
    let folder = tempfile::tempdir().unwrap();
    let (_serving, addr, _) = serve(folder.path());
    let silent: Vec<_> = (0..MAX_CONNECTIONS - 1).map(|_| TcpStream::connect(addr).unwrap()).collect();
    assert!(ask(TcpStream::connect(addr).unwrap(), "/healthz").ends_with("ok\n"));
    for stream in silent {
        stream.shutdown(Shutdown::Both).unwrap();
    }
}

#[test]
fn a_connection_ends_when_its_time_is_over_e11() {
    let life = Duration::from_millis(300);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        limits::spawn(listener, routes::public(Arc::new(Fixed)), life);
        let client = std::thread::spawn(move || {
            let mut slow = TcpStream::connect(addr).unwrap();
            slow.write_all(b"GET /metrics HTTP/1.1\r\nX-Slow: ").unwrap();
            let started = std::time::Instant::now();
            let ended = slow.read(&mut [0]);
            (!matches!(ended, Ok(1..)), started.elapsed())
        });
        while !client.is_finished() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        client
    });
    let (ended, after) = client.join().unwrap();
    assert!(ended && after < life * 10, "{after:?}");
}

#[test]
fn a_taken_metrics_port_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = taken.local_addr().unwrap();
    let error = Admin::bind(Some(addr), None, &folder.path().join("a.sock")).unwrap_err().to_string();
    assert!(error.contains(&addr.to_string()) && error.contains("--metrics"), "{error}");
    assert!(!folder.path().join("a.sock").exists());
}

#[test]
fn a_missing_folder_of_the_socket_is_named_and_not_made() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing");
    let error = Admin::bind(None, None, &missing.join("a.sock")).unwrap_err().to_string();
    assert!(error.contains(&format!("mkdir -m 700 -p {}", missing.display())), "{error}");
    assert!(!missing.exists());
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let live = Admin::bind(None, None, &path).unwrap();
    let error = Admin::bind(None, None, &path).unwrap_err().to_string();
    assert!(error.starts_with("another windlass answers on"), "{error}");
    drop(live);
    assert!(!path.exists(), "what was bound and never served is removed too");
    std::fs::write(&path, "precious").unwrap();
    let error = Admin::bind(None, None, &path).unwrap_err().to_string();
    assert!(error.contains("it exists and is no socket"), "{error}");
}

/// A node that is asked after.
struct Asked {
    is_ill: bool,
    is_stuck: bool,
    is_leaving: bool,
}

impl Readings for Asked {
    fn samples(&self) -> Vec<Sample> {
        Vec::new()
    }

    fn illness(&self) -> Option<String> {
        self.is_ill.then(|| "a worker has ended".to_owned())
    }

    fn programming(&self) -> Programming {
        Programming { applied_at: SystemTime::UNIX_EPOCH, is_stuck: self.is_stuck }
    }

    fn is_eligible(&self) -> bool {
        !self.is_leaving
    }
}

#[test]
fn health_is_served_as_kube_proxy_serves_it() {
    let well = Asked { is_ill: false, is_stuck: false, is_leaving: false };
    let cases = [
        (well, [200, 200, 200]),
        (Asked { is_ill: true, is_stuck: false, is_leaving: false }, [503, 503, 503]),
        (Asked { is_ill: false, is_stuck: true, is_leaving: false }, [503, 503, 200]),
        (Asked { is_ill: false, is_stuck: false, is_leaving: true }, [503, 200, 200]),
    ];
    for (asked, expected) in cases {
        let folder = tempfile::tempdir().unwrap();
        let (is_leaving, is_old) = (asked.is_leaving, asked.is_stuck || asked.is_ill);
        let path = folder.path().join("admin.sock");
        let admin = Admin::bind(None, Some(([127, 0, 0, 1], 0).into()), &path).unwrap();
        let addr = admin.health_addr().unwrap();
        let _serving = admin.serve(Arc::new(asked)).unwrap();
        let answers =
            ["/healthz", "/livez", "/readyz"].map(|path| ask(TcpStream::connect(addr).unwrap(), path));
        for (answer, code) in answers.iter().zip(expected) {
            assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{answer}");
        }
        assert!(answers[0].contains(&format!("\"nodeEligible\":{}", !is_leaving)), "{}", answers[0]);
        assert!(answers[1].contains("\"lastUpdated\":\"") && !answers[1].contains("nodeEligible"));
        assert_eq!(answers[1].contains("\"lastUpdated\":\"1970-01-01T00:00:00Z\""), is_old);
    }
}
