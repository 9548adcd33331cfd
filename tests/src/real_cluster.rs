//! A real control plane on the wire: etcd, kube-apiserver and kube-controller-manager, and what runs on a stock node:
//! flanneld, kube-proxy, and pods by flannel's CNI plugin. `.ci/peers` builds them.
//!
//! What is not real: there is no kubelet, so a test makes Nodes and Pods itself and reports what a kubelet would; and
//! the nodes' clocks, kernels and file systems are this machine's own.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::netns::{Netns, on_path, scratch_folder};
use crate::process::{Guarded, run, run_with_input, wait_until};
use crate::topology::{CLUSTER_CIDR, Host, SERVICE_CIDR, VNI, VXLAN_PORT};

/// Where the API server listens: on the wire, where every node reaches it without any overlay.
const API_SERVER: Ipv4Addr = Ipv4Addr::new(192, 168, 1, 2);
/// An address outside the cluster and its network: the nodes' gateway, which is the wire, has it.
pub const OUTSIDE: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 7);
/// Programs that [`RealCluster`] runs, by the folder they lie in.
const BUILT: [&str; 5] = ["kube-apiserver", "kube-controller-manager", "kube-proxy", "flanneld", "flannel"];
const INSTALLED: [&str; 3] = ["etcd", "kubectl", "openssl"];
const CNI_PLUGINS: &str = "/usr/lib/cni";
/// What a Node of this cluster needs of the controller manager; those that ask after a kubelet are left out.
const CONTROLLERS: &str = "node-ipam-controller,endpointslice-controller,endpoints-controller,\
    serviceaccount-controller,serviceaccount-token-controller";
const ADMIN_TOKEN: &str = "the-administrator";
/// A loaded machine takes its time to start etcd and the API server.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Why there can be no real cluster here, if there can be none.
#[must_use]
pub fn missing_ability() -> Option<String> {
    if let Some(program) = BUILT.iter().find(|program| !built().join(program).is_file()) {
        return Some(format!("no `{program}`: .ci/peers builds it where go and its module proxy can be had"));
    }
    let missing = INSTALLED.iter().find(|program| !on_path(program));
    if let Some(program) = missing {
        return Some(format!(
            "`{program}` is not installed (Debian: etcd-server, kubernetes-client, openssl)"
        ));
    }
    let plugin = Path::new(CNI_PLUGINS).join("bridge");
    (!plugin.is_file()).then(|| format!("no {} (Debian: containernetworking-plugins)", plugin.display()))
}

fn built() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/peers")
}

/// A control plane that runs; its processes end when it is dropped.
#[derive(Debug)]
pub struct RealCluster<'a> {
    wire: &'a Netns,
    folder: tempfile::TempDir,
    processes: Vec<(String, Guarded)>,
}

impl<'a> RealCluster<'a> {
    /// Starts etcd, the API server and the controller manager in the wire's namespace, and waits until they serve.
    ///
    /// # Errors
    /// When one of them does not come up; the error carries its log.
    pub fn start(wire: &'a Netns) -> Result<Self> {
        wire.ip(&format!("addr add {API_SERVER}/24 dev br0"))?;
        wire.ip(&format!("addr add {OUTSIDE}/32 dev lo"))?;
        let mut cluster = Self { wire, folder: scratch_folder("cluster")?, processes: Vec::new() };
        cluster.write_credentials()?;
        cluster.start_etcd()?;
        cluster.start_api_server()?;
        cluster.wait("the API server to be ready", |cluster| cluster.get("/readyz").is_ok())?;
        cluster.start_controller_manager()?;
        Ok(cluster)
    }

    /// A kubeconfig with that bearer token.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn kubeconfig(&self, name: &str, token: &str) -> Result<PathBuf> {
        let file = self.path(&format!("{name}.kubeconfig"));
        let cluster = json!({
            "server": format!("https://{API_SERVER}:6443"),
            "certificate-authority": self.path("tls/apiserver.crt"),
        });
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "real",
            "clusters": [{ "name": "real", "cluster": cluster }],
            "users": [{ "name": name, "user": { "token": token } }],
            "contexts": [{ "name": "real", "context": { "cluster": "real", "user": name } }],
        });
        std::fs::write(&file, config.to_string())?;
        Ok(file)
    }

    /// The administrator's kubeconfig.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn admin(&self) -> Result<PathBuf> {
        self.kubeconfig("admin", ADMIN_TOKEN)
    }

    /// `kubectl` as administrator, with `input` as its standard input.
    ///
    /// # Errors
    /// When it fails.
    pub fn kubectl(&self, words: &[&str], input: &str) -> Result<String> {
        let mut command = self.wire.command("kubectl");
        command.env("HOME", self.folder.path()).arg("--kubeconfig").arg(self.admin()?).args(words);
        run_with_input(&mut command, input)
    }

    /// What the API server answers at that path.
    ///
    /// # Errors
    /// When it refuses.
    pub fn get(&self, path: &str) -> Result<String> {
        self.kubectl(&["get", "--raw", path], "")
    }

    /// Creates an object, and gives it as the server stored it.
    ///
    /// # Errors
    /// When the server refuses it.
    pub fn create(&self, object: &Value) -> Result<Value> {
        let stored = self.kubectl(&["create", "-o", "json", "-f", "-"], &object.to_string())?;
        serde_json::from_str(&stored).context("the object as stored")
    }

    /// Replaces an object's status, as its kubelet reports it.
    ///
    /// # Errors
    /// When the server refuses it.
    pub fn report(&self, path: &str, status: &Value) -> Result<()> {
        let mut object: Value = serde_json::from_str(&self.get(path)?)?;
        object["status"] = status.clone();
        let file = self.path("status.json");
        std::fs::write(&file, object.to_string())?;
        let file = file.display().to_string();
        self.kubectl(&["replace", "--raw", &format!("{path}/status"), "-f", &file], "").map(drop)
    }

    /// A token of that service account, as a pod of it would be given.
    ///
    /// # Errors
    /// When the server gives none.
    pub fn service_account_token(&self, namespace: &str, name: &str) -> Result<String> {
        let request = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {} });
        let file = self.path("token-request.json");
        std::fs::write(&file, request.to_string())?;
        let file = file.display().to_string();
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let answer = self.kubectl(&["create", "--raw", &path, "-f", &file], "")?;
        let answer: Value = serde_json::from_str(&answer)?;
        let token = answer["status"]["token"].as_str().context("no token in the answer")?;
        Ok(token.to_owned())
    }

    /// Makes the Node and waits until the controller manager has given it a podCIDR, which it returns.
    ///
    /// # Errors
    /// When it does not get one.
    pub fn add_node(&self, host: &Host) -> Result<String> {
        let name = host.spec.name;
        host.netns.ip(&format!("route add default via {API_SERVER}"))?;
        // Every kubelet annotates its node; flanneld 0.28.4 panics on a node without any annotation.
        let annotations = json!({ "volumes.kubernetes.io/controller-managed-attach-detach": "true" });
        let metadata = json!({ "name": name, "annotations": annotations });
        self.create(&json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata }))?;
        let path = format!("/api/v1/nodes/{name}");
        let addresses = json!([
            { "type": "InternalIP", "address": host.spec.address.to_string() },
            { "type": "Hostname", "address": name },
        ]);
        let conditions = json!([{ "type": "Ready", "status": "True" }]);
        self.report(&path, &json!({ "addresses": addresses, "conditions": conditions }))?;
        let mut pod_cidr = String::new();
        wait_until(&format!("node {name} to get a podCIDR"), START_LIMIT, || {
            let node: Value = serde_json::from_str(&self.get(&path)?)?;
            pod_cidr = node["spec"]["podCIDR"].as_str().unwrap_or_default().to_owned();
            Ok(!pod_cidr.is_empty())
        })?;
        Ok(pod_cidr)
    }

    /// Makes a Pod with those labels on that node, joins it by flannel's CNI plugin, and reports it ready.
    ///
    /// # Errors
    /// When a step fails.
    pub fn add_pod(&self, node: &CniNode<'_>, name: &str, labels: &Value) -> Result<ClusterPod> {
        let pod = node.join(name)?;
        self.create(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": name, "labels": labels },
            "spec": {
                "nodeName": node.host.spec.name,
                "containers": [{ "name": "serve", "image": "none" }],
                "tolerations": [{ "operator": "Exists" }],
            },
        }))?;
        let host = node.host.spec.address.to_string();
        let address = pod.address.to_string();
        let status = json!({
            "phase": "Running", "hostIP": host, "podIP": address, "podIPs": [{ "ip": address }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        });
        self.report(&format!("/api/v1/namespaces/default/pods/{name}"), &status)?;
        Ok(pod)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write_credentials(&self) -> Result<()> {
        std::fs::write(self.path("tokens.csv"), format!("{ADMIN_TOKEN},admin,admin,system:masters\n"))?;
        let key = self.path("service-accounts.key");
        run(Command::new("openssl").args(["genrsa", "-out"]).arg(key).arg("2048")).map(drop)
    }

    fn start_etcd(&mut self) -> Result<()> {
        let data = self.path("etcd").display().to_string();
        self.spawn("etcd", Path::new("etcd"), &["--unsafe-no-fsync", "--data-dir", &data])
    }

    fn start_api_server(&mut self) -> Result<()> {
        let address = API_SERVER.to_string();
        let (tls, tokens) = (self.path("tls"), self.path("tokens.csv"));
        let key = self.path("service-accounts.key");
        let [tls, tokens, key] = [tls, tokens, key].map(|path| path.display().to_string());
        let flags = [
            "--etcd-servers=http://127.0.0.1:2379",
            &format!("--bind-address={address}"),
            &format!("--advertise-address={address}"),
            &format!("--cert-dir={tls}"),
            &format!("--token-auth-file={tokens}"),
            &format!("--service-account-key-file={key}"),
            &format!("--service-account-signing-key-file={key}"),
            "--service-account-issuer=https://kubernetes.default.svc",
            &format!("--service-cluster-ip-range={SERVICE_CIDR}"),
            "--authorization-mode=RBAC",
            // It waits for a controller to make each namespace's default account; pods here use no account.
            "--disable-admission-plugins=ServiceAccount",
        ];
        self.spawn("kube-apiserver", &built().join("kube-apiserver"), &flags)?;
        let certificate = self.path("tls/apiserver.crt");
        self.wait("the API server's certificate", |_| certificate.is_file())
    }

    fn start_controller_manager(&mut self) -> Result<()> {
        let (config, key) = (self.admin()?, self.path("service-accounts.key"));
        let [config, key] = [config, key].map(|path| path.display().to_string());
        let flags = [
            &format!("--kubeconfig={config}"),
            &format!("--service-account-private-key-file={key}"),
            "--allocate-node-cidrs",
            &format!("--cluster-cidr={CLUSTER_CIDR}"),
            &format!("--service-cluster-ip-range={SERVICE_CIDR}"),
            "--leader-elect=false",
            "--secure-port=0",
            &format!("--controllers={CONTROLLERS}"),
        ];
        self.spawn("kube-controller-manager", &built().join("kube-controller-manager"), &flags)
    }

    /// Runs flanneld on that node until the cluster is dropped, and gives the file it writes for the CNI plugin.
    ///
    /// # Errors
    /// When it does not register the node.
    pub fn run_flanneld(&mut self, host: &Host) -> Result<PathBuf> {
        let name = host.spec.name;
        let run = self.path(&format!("{name}-run"));
        std::fs::create_dir_all(&run)?;
        let config = self.path("net-conf.json");
        std::fs::write(&config, net_conf().to_string())?;
        let admin = self.admin()?;
        let mut command = in_own_run(&host.netns, &run, &built().join("flanneld"));
        command.env("NODE_NAME", name).args(["--kube-subnet-mgr", "--ip-masq", "--iface=eth0"]);
        command.arg("--kubeconfig-file").arg(admin).arg("--net-config-path").arg(config);
        self.spawn_logged(&format!("flanneld-{name}"), &mut command)?;
        let env = run.join("flannel/subnet.env");
        self.wait("flanneld's subnet.env", |_| env.is_file())?;
        Ok(env)
    }

    /// Runs kube-proxy (nftables mode) on that node until the cluster is dropped.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn run_kube_proxy(&mut self, host: &Host) -> Result<()> {
        let name = host.spec.name;
        let run = self.path(&format!("{name}-run"));
        std::fs::create_dir_all(&run)?;
        let admin = self.admin()?;
        let mut command = in_own_run(&host.netns, &run, &built().join("kube-proxy"));
        command.args(["--proxy-mode=nftables", "--hostname-override", name, "--cluster-cidr", CLUSTER_CIDR]);
        // A namespace may not set the limits of the machine's connection tracking; 0 leaves them.
        command.args(["--conntrack-max-per-core=0", "--conntrack-min=0"]);
        command.args(["--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"]);
        command.arg("--kubeconfig").arg(admin);
        self.spawn_logged(&format!("kube-proxy-{name}"), &mut command)?;
        self.wait("kube-proxy's rules", |_| {
            host.netns.exec("nft list tables").is_ok_and(|tables| tables.contains("kube-proxy"))
        })
    }

    /// Waits until `ready` says true, and fails at once when one of the programs has ended.
    fn wait(&mut self, what: &str, ready: impl Fn(&Self) -> bool) -> Result<()> {
        wait_until(what, START_LIMIT, || {
            for (name, process) in &mut self.processes {
                if let Some(code) = process.exit_code()? {
                    bail!("{name} ended with code {code}");
                }
            }
            Ok(ready(self))
        })
    }

    fn spawn(&mut self, name: &str, program: &Path, flags: &[&str]) -> Result<()> {
        let mut command = self.wire.command(program);
        command.args(flags);
        self.spawn_logged(name, &mut command)
    }

    fn spawn_logged(&mut self, name: &str, command: &mut Command) -> Result<()> {
        let log = std::fs::File::create(self.path(&format!("{name}.log")))?;
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.processes.push((name.to_owned(), Guarded::spawn(command)?));
        Ok(())
    }

    /// The last lines of every program's log, for a failure's message.
    #[must_use]
    pub fn logs(&self) -> String {
        let entries = std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten();
        let logs = entries.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "log"));
        logs.map(|entry| {
            let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n");
            format!("--- {}\n{last}\n", entry.file_name().to_string_lossy())
        })
        .collect()
    }
}

const LOG_LINES_SHOWN: usize = 15;

/// flannel's configuration of this cluster, as the ConfigMap kube-flannel-cfg and flanneld's file hold it.
#[must_use]
pub fn net_conf() -> Value {
    json!({
        "Network": CLUSTER_CIDR,
        "EnableNFTables": true,
        "Backend": { "Type": "vxlan", "VNI": VNI, "Port": VXLAN_PORT },
    })
}

/// A command with a `/run` of its own, as nodes share this machine's file system; `ip netns exec` gives every program
/// mounts of its own.
fn in_own_run(netns: &Netns, run: &Path, program: &Path) -> Command {
    let mut command = netns.command("sh");
    command.args(["-c", r#"mount --bind "$0" /run && exec "$@""#]).arg(run).arg(program);
    command
}

/// A node on which flannel's CNI plugin makes pods.
#[derive(Debug)]
pub struct CniNode<'a> {
    host: &'a Host,
    subnet_env: PathBuf,
    folder: tempfile::TempDir,
}

/// A pod of the real cluster: a namespace with `eth0` on its node's bridge.
#[derive(Debug)]
pub struct ClusterPod {
    /// The pod's namespace.
    pub netns: Netns,
    /// The pod's address.
    pub address: Ipv4Addr,
}

impl<'a> CniNode<'a> {
    /// Pods as that node's `subnet.env` has them.
    ///
    /// # Errors
    /// When there is no place for the plugins' files.
    pub fn new(host: &'a Host, subnet_env: PathBuf) -> Result<Self> {
        Ok(Self { host, subnet_env, folder: scratch_folder("cni")? })
    }

    /// The conflist's one plugin, as kube-flannel.yml has it; folders are this node's own.
    fn network(&self) -> Value {
        json!({
            "cniVersion": "0.3.1", "name": "cbr0", "type": "flannel",
            "subnetFile": self.subnet_env,
            "dataDir": self.folder.path().join("flannel"),
            "ipam": { "type": "host-local", "dataDir": self.folder.path().join("networks") },
            "delegate": { "hairpinMode": true, "isDefaultGateway": true },
        })
    }

    fn join(&self, name: &str) -> Result<ClusterPod> {
        let netns = Netns::new("pod")?;
        let mut plugin = self.host.netns.command(built().join("flannel"));
        plugin
            .env("CNI_COMMAND", "ADD")
            .env("CNI_CONTAINERID", netns.name())
            .env("CNI_NETNS", netns.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", CNI_PLUGINS);
        let result = run_with_input(&mut plugin, &self.network().to_string())?;
        let result: Value = serde_json::from_str(&result).context("the flannel plugin's result")?;
        let address = result["ips"][0]["address"].as_str().and_then(|address| address.split('/').next());
        let Some(address) = address.and_then(|address| address.parse().ok()) else {
            bail!("no address for pod {name} in {result}");
        };
        Ok(ClusterPod { netns, address })
    }
}
