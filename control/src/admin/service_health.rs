//! Servers of healthCheckNodePorts, where load balancers ask which nodes have endpoints of a service with
//! externalTrafficPolicy Local (Kubernetes, pkg/proxy/healthcheck/service_health.go).

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderName, StatusCode, header};
use axum::response::IntoResponse;
use serde_json::json;
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::{CONNECTION_LIFE, Readings, health, limits};
use crate::compile::HealthCheck;

/// The servers.
pub struct ServiceHealth {
    readings: Arc<dyn Readings>,
    runtime: Handle,
    servers: BTreeMap<SocketAddr, Server>,
}

struct Server {
    check: Arc<Mutex<HealthCheck>>,
    task: AbortHandle,
}

impl ServiceHealth {
    /// No servers as yet, of a node whose health `readings` tell; they are to answer on `runtime`.
    pub fn new(readings: Arc<dyn Readings>, runtime: Handle) -> Self {
        Self { readings, runtime, servers: BTreeMap::new() }
    }

    /// Answers for these services at these addresses of this node, and for no others. Names what cannot be
    /// listened on; it is tried again at the next call.
    pub fn follow(&mut self, addrs: &[IpAddr], checks: &BTreeMap<u16, HealthCheck>) -> Vec<String> {
        let at = |(port, check): (&u16, &HealthCheck)| {
            let (port, check) = (*port, check.clone());
            addrs.iter().map(move |addr| (SocketAddr::new(*addr, port), check.clone()))
        };
        let wanted: BTreeMap<SocketAddr, HealthCheck> = checks.iter().flat_map(at).collect();
        self.servers.retain(|addr, server| {
            let stays = wanted.contains_key(addr);
            if !stays {
                server.task.abort();
            }
            stays
        });
        let mut refused = Vec::new();
        for (addr, check) in wanted {
            let service = check.service.clone();
            if let Some(server) = self.servers.get(&addr) {
                *server.check.lock().unwrap_or_else(PoisonError::into_inner) = check;
            } else if let Err(error) = self.serve(addr, check) {
                refused.push(format!(
                    "Service {service}: cannot listen on {addr}, its healthCheckNodePort: {error}; load balancers \
                     take this node for one without endpoints: stop what uses the port"
                ));
            }
        }
        refused
    }

    fn serve(&mut self, addr: SocketAddr, check: HealthCheck) -> io::Result<()> {
        let listener = std::net::TcpListener::bind(addr)?;
        listener.set_nonblocking(true)?;
        let check = Arc::new(Mutex::new(check));
        let state = (Arc::clone(&self.readings), Arc::clone(&check));
        let router = Router::new().fallback(answer).with_state(state);
        let _inside = self.runtime.enter();
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let task = limits::spawn(listener, router, CONNECTION_LIFE);
        self.servers.insert(addr, Server { check, task });
        Ok(())
    }
}

type Asked = (Arc<dyn Readings>, Arc<Mutex<HealthCheck>>);

/// Well if there is an endpoint here and this node is well, whatever the path.
async fn answer(State((readings, check)): State<Asked>) -> impl IntoResponse {
    let HealthCheck { service, local_endpoints } =
        check.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let is_well = health::is_well(&*readings);
    let status =
        if is_well && local_endpoints > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let headers = [
        (header::CONTENT_TYPE, "application/json".to_owned()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff".to_owned()),
        (WEIGHT, local_endpoints.to_string()),
    ];
    // Written out: the keys are in kube-proxy's order.
    let body = format!(
        r#"{{"service":{{"namespace":{},"name":{}}},"localEndpoints":{local_endpoints},"serviceProxyHealthy":{is_well}}}"#,
        json!(&*service.namespace),
        json!(&*service.name),
    );
    (status, headers, body)
}

/// How much of the traffic a load balancer that weighs nodes sends here.
const WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::admin::Sample;
    use crate::cluster::ObjectName;

    #[derive(Default)]
    struct Node(AtomicBool);

    impl Readings for Node {
        fn samples(&self) -> Vec<Sample> {
            Vec::new()
        }

        fn illness(&self) -> Option<String> {
            self.0.load(Ordering::Relaxed).then(|| "ill".to_owned())
        }
    }

    fn ask(port: u16) -> Option<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: n\r\nConnection: close\r\n\r\n").ok()?;
        let mut said = String::new();
        stream.read_to_string(&mut said).ok()?;
        Some(said)
    }

    fn check(local_endpoints: usize) -> HealthCheck {
        HealthCheck { service: ObjectName::new("default", "web"), local_endpoints }
    }

    #[test]
    fn a_health_check_node_port_tells_whether_endpoints_are_here_and_the_proxy_is_well() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free.local_addr().unwrap().port();
        let node = Arc::new(Node::default());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || drop(runtime.block_on(stopped)));
        let mut servers = ServiceHealth::new(Arc::clone(&node) as Arc<dyn Readings>, handle);
        let mut follow = |checks: &[(u16, usize)]| {
            let checks = checks.iter().map(|(port, count)| (*port, check(*count))).collect();
            servers.follow(&[Ipv4Addr::LOCALHOST.into()], &checks)
        };
        let refused = follow(&[(port, 2)]);
        assert!(refused[0].starts_with("Service default/web: cannot listen on 127.0.0.1:"), "{refused:?}");
        drop(free);
        assert_eq!(follow(&[(port, 2)]), [""; 0]);
        let said = ask(port).unwrap();
        assert!(said.starts_with("HTTP/1.1 200 OK"), "{said}");
        assert!(said.contains("x-load-balancing-endpoint-weight: 2\r\n"), "{said}");
        let body = r#"{"service":{"namespace":"default","name":"web"},"localEndpoints":2,"serviceProxyHealthy":true}"#;
        assert!(said.ends_with(body), "{said}");
        follow(&[(port, 0)]);
        let said = ask(port).unwrap();
        assert!(said.starts_with("HTTP/1.1 503") && said.contains("\"localEndpoints\":0"), "{said}");
        follow(&[(port, 1)]);
        node.0.store(true, Ordering::Relaxed);
        let said = ask(port).unwrap();
        assert!(said.starts_with("HTTP/1.1 503") && said.contains("\"serviceProxyHealthy\":false"), "{said}");
        follow(&[]);
        let mut gone = (0..1000).map(|_| std::thread::sleep(std::time::Duration::from_millis(10)));
        assert!(gone.any(|()| ask(port).is_none()), "nobody listens any more");
        drop(stop);
        thread.join().unwrap();
    }
}
