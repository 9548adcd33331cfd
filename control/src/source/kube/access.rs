//! How the API server is reached: by a kubeconfig, or by what a pod is given.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

/// Where a pod finds its service account.
const SERVICE_ACCOUNT: &str = "var/run/secrets/kubernetes.io/serviceaccount";
/// Where a Windows HostProcess container under containerd 1.6 finds the root of its own files.
const SANDBOX: &str = "CONTAINER_SANDBOX_MOUNT_POINT";

/// Silence in an answer that is under way; longer than a watch that has nothing to say.
const READ_LIMIT: Duration = Duration::from_secs(160);
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// A way to the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// The kubeconfig of that path.
    Kubeconfig(PathBuf),
    /// A pod's environment, and the folder of its service account.
    InCluster {
        /// Host and port of the server.
        server: String,
        /// With `token` and `ca.crt`.
        account: PathBuf,
    },
}

/// Why there is no way.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The kubeconfig cannot be used.
    #[error("cannot use the kubeconfig {}: {reason}; give --kubeconfig a file with which `kubectl --kubeconfig` works", file.display())]
    Kubeconfig {
        /// The file.
        file: PathBuf,
        /// Why.
        reason: String,
    },
    /// What the pod is given cannot be used.
    #[error("cannot use the pod's service account in {}: {reason}; mount its token, and set KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT to the API server's own address", folder.display())]
    InCluster {
        /// The service account's folder.
        folder: PathBuf,
        /// Why.
        reason: String,
    },
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kubeconfig(file) => write!(f, "kubeconfig {}", file.display()),
            Self::InCluster { account, .. } => write!(f, "service account in {}", account.display()),
        }
    }
}

impl Access {
    /// The way that a pod is given; `None` outside of pods.
    pub fn in_cluster() -> Option<Self> {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let host = variable("KUBERNETES_SERVICE_HOST")?;
        let port = variable("KUBERNETES_SERVICE_PORT").unwrap_or("443".to_owned());
        let host = match host.parse::<IpAddr>() {
            Ok(IpAddr::V6(addr)) => format!("[{addr}]"),
            _ => host,
        };
        let roots = [Some("/".to_owned()), variable(SANDBOX)];
        let folders = || roots.iter().flatten().map(|root| Path::new(root).join(SERVICE_ACCOUNT));
        let account = folders().find(|folder| folder.join("token").is_file()).or(folders().next())?;
        Some(Self::InCluster { server: format!("{host}:{port}"), account })
    }

    /// A client, and the server's address. To be called within a tokio runtime.
    pub(super) async fn client(&self) -> Result<(Client, String), AccessError> {
        let mut config = match self {
            Self::Kubeconfig(file) => from_file(file).await,
            Self::InCluster { server, account } => from_account(server, account),
        }
        .map_err(|reason| self.unusable(reason))?;
        config.connect_timeout = Some(CONNECT_LIMIT);
        config.read_timeout = Some(READ_LIMIT);
        config.reset_reader_on_write = true;
        // The back-off is ours, so that every failure is said.
        config.default_retry = false;
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = Client::try_from(config).map_err(|error| self.unusable(error.to_string()))?;
        Ok((client, server))
    }

    fn unusable(&self, reason: String) -> AccessError {
        match self {
            Self::Kubeconfig(file) => AccessError::Kubeconfig { file: file.clone(), reason },
            Self::InCluster { account, .. } => AccessError::InCluster { folder: account.clone(), reason },
        }
    }
}

async fn from_file(file: &Path) -> Result<Config, String> {
    let kubeconfig = Kubeconfig::read_from(file).map_err(|error| error.to_string())?;
    let options = KubeConfigOptions::default();
    Config::from_custom_kubeconfig(kubeconfig, &options).await.map_err(|error| error.to_string())
}

/// The token and the authority are read again as they are renewed.
fn from_account(server: &str, account: &Path) -> Result<Config, String> {
    let url = format!("https://{server}").parse().map_err(|error| format!("{server}: {error}"))?;
    let readable = |name: &str| {
        let file = account.join(name);
        std::fs::metadata(&file).map(|_| file.clone()).map_err(|error| format!("{}: {error}", file.display()))
    };
    let mut config = Config::new(url);
    config.root_cert_file = Some(readable("ca.crt")?);
    config.auth_info =
        AuthInfo { token_file: Some(readable("token")?.display().to_string()), ..AuthInfo::default() };
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(access: &Access) -> String {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let client = runtime.block_on(access.client());
        client.map(|_| ()).unwrap_err().to_string()
    }

    #[test]
    fn a_kubeconfig_that_cannot_be_used_is_named() {
        let folder = tempfile::tempdir().unwrap();
        for (text, expected) in [
            ("apiVersion: v1\nkind: Config\n", "current context"),
            ("clusters: 3\n", "YAML"),
            (
                "current-context: a\ncontexts: [{name: a, context: {cluster: b, user: c}}]\n",
                "failed to load the cluster of context",
            ),
        ] {
            let file = folder.path().join("config");
            std::fs::write(&file, text).unwrap();
            let said = refused(&Access::Kubeconfig(file.clone()));
            assert!(said.contains(expected) && said.contains(file.to_str().unwrap()), "{said}");
        }
        let said = refused(&Access::Kubeconfig(folder.path().join("none")));
        assert!(said.contains("none") && said.contains("--kubeconfig"), "{said}");
    }

    #[test]
    fn a_pod_without_token_is_told_so() {
        let folder = tempfile::tempdir().unwrap();
        let account = folder.path().to_owned();
        let said = refused(&Access::InCluster { server: "192.0.2.1:6443".to_owned(), account });
        assert!(said.contains("ca.crt") && said.contains("KUBERNETES_SERVICE_HOST"), "{said}");
    }
}
