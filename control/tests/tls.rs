//! The API server over TLS, and a pod's credentials: whom we trust, and what is said when we do not.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use windlass_control::source::kube::{Access, ApiSource, Patience};
use windlass_tests::api_server::ApiServer;
use windlass_tests::objects::Objects;
use windlass_tests::topology::NodeSpec;

const PREFIX: &str = "flannel.alpha.coreos.com";
const LIMIT: Duration = Duration::from_secs(60);

/// A certificate authority made for one test.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), pem })
    }

    /// What a server of that name, or address, shows until that year.
    fn server(&self, name: &str, until: i32) -> Result<ServerConfig> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(vec![name.to_owned()])?;
        params.not_after = date_time_ymd(until, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::try_from(key.serialize_der()).map_err(anyhow::Error::msg)?;
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)?;
        Ok(config)
    }
}

/// TLS in front of the stand-in, which speaks plain HTTP.
struct Front {
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Front {
    fn start(server: &ApiServer, config: ServerConfig) -> Result<Self> {
        let behind: SocketAddr = server.url().trim_start_matches("http://").parse()?;
        let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (stop, stopped) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = std::thread::spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    _ = forward(listener, acceptor, behind) => {}
                    _ = stopped => {}
                }
            });
        });
        Ok(Self { addr, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

async fn forward(listener: std::net::TcpListener, acceptor: TlsAcceptor, behind: SocketAddr) -> Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (client, _) = listener.accept().await?;
        let acceptor = acceptor.clone();
        tokio::spawn(async move {
            let mut client = acceptor.accept(client).await?;
            let mut server = TcpStream::connect(behind).await?;
            copy_bidirectional(&mut client, &mut server).await
        });
    }
}

/// What a pod finds of its service account.
fn in_cluster(front: &Front, folder: &Path, authority: &Authority, token: &str) -> Result<Access> {
    std::fs::write(folder.join("ca.crt"), &authority.pem)?;
    std::fs::write(folder.join("token"), token)?;
    std::fs::write(folder.join("namespace"), "windlass")?;
    Ok(Access::InCluster { server: front.addr.to_string(), account: folder.to_owned() })
}

fn kubeconfig(front: &Front, folder: &Path, authority: &Authority) -> Result<Access> {
    let ca = folder.join("authority.pem");
    std::fs::write(&ca, &authority.pem)?;
    let config = serde_json::json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "a",
        "clusters": [{ "name": "a", "cluster": {
            "server": format!("https://{}", front.addr), "certificate-authority": ca,
        } }],
        "users": [{ "name": "a", "user": { "token": "secret" } }],
        "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
    });
    let file = folder.join("kubeconfig");
    std::fs::write(&file, config.to_string())?;
    Ok(Access::Kubeconfig(file))
}

fn start(access: &Access) -> Result<ApiSource> {
    Ok(ApiSource::start(access, PREFIX, Patience::default(), Arc::new(Notify::new()))?)
}

fn nodes(source: &ApiSource) -> Result<usize> {
    source.wait(LIMIT, |_| true)?;
    Ok(source.take().context("nothing was told")?.state.nodes.len())
}

/// What is said of an API server that is not to be had.
fn refused(access: &Access) -> Result<String> {
    let waited = start(access)?.wait(Duration::from_secs(3), |_| true);
    Ok(waited.err().context("it was listed")?.to_string())
}

fn server() -> Result<ApiServer> {
    let server = ApiServer::start(&Objects::cluster(&[NodeSpec::first(), NodeSpec::second()]))?;
    server.require_token("secret");
    Ok(server)
}

#[test]
fn a_pods_service_account_and_a_kubeconfig_reach_the_server_over_tls() -> Result<()> {
    let (server, authority) = (server()?, Authority::new()?);
    let front = Front::start(&server, authority.server("127.0.0.1", 4000)?)?;
    let folder = tempfile::tempdir()?;
    for access in [
        in_cluster(&front, folder.path(), &authority, "secret")?,
        kubeconfig(&front, folder.path(), &authority)?,
    ] {
        let source = start(&access)?;
        assert_eq!(nodes(&source)?, 2, "{access}");
        ensure!(source.server().starts_with("https://127.0.0.1:"), "{}", source.server());
    }
    Ok(())
}

#[test]
fn a_pods_token_that_has_expired_is_said() -> Result<()> {
    let (server, authority) = (server()?, Authority::new()?);
    let front = Front::start(&server, authority.server("127.0.0.1", 4000)?)?;
    let folder = tempfile::tempdir()?;
    let said = refused(&in_cluster(&front, folder.path(), &authority, "old")?)?;
    ensure!(said.contains("401") && said.contains("expired"), "{said}");
    Ok(())
}

#[test]
fn a_server_that_cannot_be_trusted_is_told_with_what_may_be_wrong() -> Result<()> {
    let (server, authority) = (server()?, Authority::new()?);
    let another = Authority::new()?;
    for (why, config) in [
        ("another authority", another.server("127.0.0.1", 4000)?),
        ("another address", authority.server("192.0.2.1", 4000)?),
        // As a clock that is years ahead makes any certificate.
        ("expired", authority.server("127.0.0.1", 2020)?),
    ] {
        let front = Front::start(&server, config)?;
        let folder = tempfile::tempdir()?;
        let said = refused(&in_cluster(&front, folder.path(), &authority, "secret")?)?;
        ensure!(said.contains("certificate") && said.contains("clock"), "{why}: {said}");
    }
    Ok(())
}
