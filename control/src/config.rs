//! What a node is told: flags, environment and a file, made into one validated [`Config`].
//!
//! A flag wins over the environment, that over the file, that over the default. All three say the same things:
//! `--service-cidr 10.96.0.0/12`, `WINDLASS_SERVICE_CIDR=10.96.0.0/12` and `service-cidr: [10.96.0.0/12]`.

pub mod pin;
pub mod settings;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use ipnet::IpNet;
use windlass_dataplane::device::config::DEFAULT_RING_CAPACITY;
use windlass_dataplane::device::{Offloads, TunnelGsoMode};
use windlass_dataplane::tables::local::{DEFAULT_SOURCE_VIP_V4, DEFAULT_SOURCE_VIP_V6};
use windlass_dataplane::wire::vxlan::Vni;
use windlass_dataplane::worker::Poll;

use crate::admin::socket;
use crate::catalog;
use crate::cluster::parse_cidr;
use crate::system;

pub use pin::Pin;
pub use settings::{Place, Settings, SettingsArgs};

/// A setting that cannot be used. All of them mean wrong usage (exit code 2).
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file of `--config` cannot be read or parsed.
    #[error("cannot read the configuration file {}: {reason}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// Why not, with the line where there is one.
        reason: String,
    },
    /// The file has a key that is no setting.
    #[error("{}: unknown key {key:?}; {}", file.display(), known_keys(key))]
    UnknownKey {
        /// The file.
        file: PathBuf,
        /// The key.
        key: String,
    },
    /// A value that does not fit its setting.
    #[error("{place}: {value:?} is not valid: give {wants}")]
    Value {
        /// The setting and where it was found.
        place: Place,
        /// What was found.
        value: String,
        /// What would be valid.
        wants: String,
    },
    /// A setting without which there is nothing to do.
    #[error("--{name} is missing; {remedy}")]
    Missing {
        /// The setting.
        name: &'static str,
        /// What to give.
        remedy: &'static str,
    },
    /// The command line itself.
    #[error("{0}")]
    Arguments(String),
}

fn known_keys(key: &str) -> String {
    let wanted = key.to_lowercase().replace(['_', '-'], "");
    let keys = || settings::NAMES.into_iter().filter(|name| *name != "config");
    match keys().find(|name| name.replace('-', "") == wanted) {
        Some(name) => format!("write {name:?}"),
        None => format!("the keys are {}", keys().collect::<Vec<_>>().join(", ")),
    }
}

/// How log lines are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What the overlay device is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceKind {
    /// One TUN (Wintun) device: pods' packets are routed.
    #[default]
    Tun,
    /// A TAP device for each L2 segment: frames are bridged.
    Tap,
}

/// The outer header's DSCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dscp {
    /// The inner packet's.
    #[default]
    Copy,
    /// Always this one, 0 to 63.
    Fixed(u8),
}

/// Everything a node is told, validated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Files and folders of Kubernetes objects.
    pub manifests: Vec<PathBuf>,
    /// How the API server is reached, when given.
    pub kubeconfig: Option<PathBuf>,
    /// How long to wait for the API server and for this node in the cluster.
    pub wait: Duration,
    /// Where is kept what outlives a run.
    pub state_dir: PathBuf,
    /// Whether device, addresses, routes and rules are left standing at exit.
    pub persist: bool,
    /// The file that the flannel CNI plugin reads; `None` when it is not to be written.
    pub subnet_env: Option<PathBuf>,
    /// This node's name.
    pub node: String,
    /// Own underlay addresses, at most one per family; empty to choose.
    pub underlay_addrs: Vec<IpAddr>,
    /// VXLAN's UDP port, when given.
    pub underlay_port: Option<u16>,
    /// The VNI, when given.
    pub vni: Option<Vni>,
    /// Name of the overlay device.
    pub device: String,
    /// What the overlay device is.
    pub device_kind: DeviceKind,
    /// Number of workers.
    pub workers: usize,
    /// Where ClusterIPs are allocated; empty to discover.
    pub service_cidrs: Vec<IpNet>,
    /// Where all pods are; empty to discover.
    pub cluster_cidrs: Vec<IpNet>,
    /// Source of translated IPv4 flows.
    pub source_vip_v4: Ipv4Addr,
    /// Source of translated IPv6 flows.
    pub source_vip_v6: Ipv6Addr,
    /// Where metrics and health listen; `None` when off.
    pub metrics: Option<SocketAddr>,
    /// Where health is served as kube-proxy serves it; `None` when off.
    pub health: Option<SocketAddr>,
    /// The admin socket's path.
    pub admin_socket: PathBuf,
    /// How log lines are written.
    pub log_format: LogFormat,
    /// Where log lines are written; `None` for standard error.
    pub log_file: Option<PathBuf>,
    /// 0 for info, 1 for debug, 2 for trace.
    pub verbose: u8,
    /// Number of UDP source ports to send from.
    pub source_ports: u16,
    /// Bytes of each ring of the Wintun adapter.
    pub ring_capacity: u32,
    /// Whether a reserved VXLAN bit drops the packet (A3).
    pub strict_vxlan: bool,
    /// Deliver what tagged inner frames carry instead of dropping them.
    pub accept_inner_vlan: bool,
    /// Whether an outer source may be no node's (E1).
    pub allow_unknown_vteps: bool,
    /// The outer DSCP (B4).
    pub dscp: Dscp,
    /// Prefix of flannel's node annotations, without the slash.
    pub annotation_prefix: String,
    /// How workers look for work.
    pub poll: Poll,
    /// Which CPU each worker stays on.
    pub pin: Pin,
    /// Whether the pods' host-side veths are to aggregate.
    pub tune_pods: bool,
    /// Whether what pods send to addresses outside the cluster is masqueraded.
    pub ip_masq: bool,
    /// Which ways to handle several packets at once may be used.
    pub offloads: Offloads,
    /// Failed checks that do not keep the node from running, by name.
    pub ignore: Vec<&'static str>,
}

impl Config {
    /// Validates settings; `host_name` answers for a `--node` that was not given.
    ///
    /// # Errors
    /// With the setting, where it was found, its value and what would be valid.
    pub fn new(settings: &Settings, host_name: impl FnOnce() -> Option<String>) -> Result<Self, ConfigError> {
        let (source_vip_v4, source_vip_v6) = source_vips(settings)?;
        let manifests: Vec<PathBuf> = settings
            .list("manifests")
            .map_or_else(Vec::new, |(_, paths)| paths.into_iter().map(PathBuf::from).collect());
        let reads_api = manifests.is_empty();
        let device_kind = device_kind(settings)?;
        Ok(Self {
            manifests,
            kubeconfig: one(settings, "kubeconfig", "a file", |text| Some(PathBuf::from(text)))?,
            wait: one(settings, "wait", "a number of seconds from 1 to 86400", |text| {
                text.parse().ok().filter(|seconds| (1..=86_400).contains(seconds)).map(Duration::from_secs)
            })?
            .unwrap_or(Duration::from_secs(300)),
            state_dir: one(settings, "state-dir", "an absolute path", absolute_path)?
                .or_else(system::state_dir)
                .ok_or(ConfigError::Missing {
                    name: "state-dir",
                    remedy: "give a folder that outlives a run",
                })?,
            persist: yes(settings, "persist")?,
            subnet_env: one(settings, "subnet-env", "an absolute path, or off", |text| match text {
                "off" => Some(None),
                _ => absolute_path(text).map(Some),
            })?
            .unwrap_or(Some("/run/flannel/subnet.env".into())),
            node: node_name(settings, host_name)?,
            underlay_addrs: underlay_addrs(settings)?,
            underlay_port: one(settings, "underlay-port", "a port from 1 to 65535", |text| {
                text.parse().ok().filter(|port| *port != 0)
            })?,
            vni: one(settings, "vni", "a number from 0 to 16777215", |text| {
                text.parse().ok().and_then(Vni::new)
            })?,
            device: one(settings, "device", DEVICE_NAME, device_name)?.unwrap_or("windlass0".into()),
            device_kind,
            workers: one(settings, "workers", "a number from 1 to 256", |text| {
                text.parse().ok().filter(|count| (1..=256).contains(count))
            })?
            .unwrap_or(1),
            service_cidrs: cidrs(settings, "service-cidr")?,
            cluster_cidrs: cidrs(settings, "cluster-cidr")?,
            source_vip_v4,
            source_vip_v6,
            metrics: one(settings, "metrics", "an address and port like 127.0.0.1:10249, or off", listener)?
                .unwrap_or(Some(SocketAddr::from(([127, 0, 0, 1], 10249)))),
            health: one(settings, "health", "an address and port like 0.0.0.0:10256, or off", listener)?
                .unwrap_or(reads_api.then_some(SocketAddr::from(([0, 0, 0, 0], 10256)))),
            admin_socket: one(settings, "admin-socket", socket::PATH_WANTS, |text| {
                socket::is_path(text).then(|| text.into())
            })?
            .unwrap_or(socket::DEFAULT_PATH.into()),
            log_format: one(settings, "log-format", "text or json", |text| match text {
                "text" => Some(LogFormat::Text),
                "json" => Some(LogFormat::Json),
                _ => None,
            })?
            .unwrap_or_default(),
            log_file: one(settings, "log-file", "a file", |text| Some(PathBuf::from(text)))?,
            verbose: one(settings, "verbose", "0, 1 or 2", |text| match text {
                "false" => Some(0),
                "true" => Some(1),
                // What is left of -vv.
                "v" => Some(2),
                _ => text.parse().ok().filter(|level| *level <= 2),
            })?
            .unwrap_or(0),
            source_ports: one(settings, "source-ports", "a number from 1 to 1024", |text| {
                text.parse().ok().filter(|count| (1..=1024).contains(count))
            })?
            .unwrap_or(16),
            ring_capacity: one(settings, "ring-capacity", RING_CAPACITY, ring_capacity)?
                .unwrap_or(DEFAULT_RING_CAPACITY),
            strict_vxlan: yes(settings, "strict-vxlan")?,
            accept_inner_vlan: yes(settings, "accept-inner-vlan")?,
            allow_unknown_vteps: yes(settings, "allow-unknown-vteps")?,
            dscp: one(settings, "dscp", "copy, or a number from 0 to 63", |text| match text {
                "copy" => Some(Dscp::Copy),
                _ => text.parse().ok().filter(|dscp| *dscp <= 63).map(Dscp::Fixed),
            })?
            .unwrap_or_default(),
            annotation_prefix: one(settings, "annotation-prefix", "a DNS name", |text| {
                let text = text.trim_end_matches('/');
                is_dns_name(text).then(|| text.to_owned())
            })?
            .unwrap_or("flannel.alpha.coreos.com".into()),
            poll: one(settings, "poll", "adaptive, interrupt or busy", |text| match text {
                "adaptive" => Some(Poll::Adaptive),
                "interrupt" => Some(Poll::Interrupt),
                "busy" => Some(Poll::Busy),
                _ => None,
            })?
            .unwrap_or_default(),
            pin: Pin::new(settings)?,
            tune_pods: yes(settings, "tune-pods")?,
            ip_masq: yes_or_no(settings, "ip-masq")?.unwrap_or(true),
            offloads: Offloads {
                device: !yes(settings, "no-tun-offload")?,
                udp_send: !yes(settings, "no-gso")?,
                udp_receive: !yes(settings, "no-gro")?,
                tunnel_gso: one(settings, "tunnel-gso", "auto, on or off", |text| match text {
                    "auto" => Some(TunnelGsoMode::Auto),
                    "on" | "true" => Some(TunnelGsoMode::On),
                    "off" | "false" => Some(TunnelGsoMode::Off),
                    _ => None,
                })?
                .unwrap_or_default(),
            },
            ignore: ignored(settings)?,
        })
    }
}

/// Refuses what a segment has no use for, rather than ignoring it.
fn device_kind(settings: &Settings) -> Result<DeviceKind, ConfigError> {
    let kind = one(settings, "device-kind", "tun or tap", |text| match text {
        "tun" => Some(DeviceKind::Tun),
        "tap" => Some(DeviceKind::Tap),
        _ => None,
    })?;
    let kind = kind.unwrap_or_default();
    let of_routing = ["kubeconfig", "vni", "persist", "tune-pods", "service-cidr", "cluster-cidr"];
    let given = of_routing.into_iter().find(|name| settings.list(name).is_some());
    match given.filter(|_| kind == DeviceKind::Tap) {
        Some(name) => Err(ConfigError::Arguments(format!(
            "--{name} is for the TUN device: with --device-kind tap, segments come from --manifests and have \
             no pods, services or state; leave it out"
        ))),
        None => Ok(kind),
    }
}

const RING_CAPACITY: &str = "a power of two from 128 to 65536, in KiB";

fn ring_capacity(text: &str) -> Option<u32> {
    let kib: u32 = text.parse().ok()?;
    ((128..=65_536).contains(&kib) && kib.is_power_of_two()).then_some(kib << 10)
}

const DEVICE_NAME: &str = "1 to 15 letters, digits, dots, dashes or underscores";

fn one<T>(
    settings: &Settings,
    name: &'static str,
    wants: &str,
    parse: impl FnOnce(&str) -> Option<T>,
) -> Result<Option<T>, ConfigError> {
    let Some((place, text)) = settings.one(name)? else { return Ok(None) };
    match parse(text.trim()) {
        Some(value) => Ok(Some(value)),
        None => Err(ConfigError::Value { place, value: text.to_owned(), wants: wants.to_owned() }),
    }
}

fn all<T>(
    settings: &Settings,
    name: &'static str,
    wants: &str,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<Option<(Place, Vec<T>)>, ConfigError> {
    let Some((place, texts)) = settings.list(name) else { return Ok(None) };
    let mut values = Vec::with_capacity(texts.len());
    for text in texts {
        values.push(parse(text).ok_or_else(|| ConfigError::Value {
            place: place.clone(),
            value: text.to_owned(),
            wants: wants.to_owned(),
        })?);
    }
    Ok(Some((place, values)))
}

fn yes(settings: &Settings, name: &'static str) -> Result<bool, ConfigError> {
    Ok(yes_or_no(settings, name)?.unwrap_or(false))
}

fn yes_or_no(settings: &Settings, name: &'static str) -> Result<Option<bool>, ConfigError> {
    let parse = |text: &str| match text {
        "true" | "1" | "yes" => Some(true),
        "false" | "0" | "no" => Some(false),
        _ => None,
    };
    one(settings, name, "true or false", parse)
}

fn cidrs(settings: &Settings, name: &'static str) -> Result<Vec<IpNet>, ConfigError> {
    let wants = "network addresses like 10.96.0.0/12";
    let Some((place, cidrs)) = all(settings, name, wants, parse_cidr)? else { return Ok(Vec::new()) };
    for cidr in &cidrs {
        if cidr.trunc() != *cidr {
            return Err(ConfigError::Value {
                place,
                value: cidr.to_string(),
                wants: format!("the network's own address, {}", cidr.trunc()),
            });
        }
    }
    Ok(cidrs)
}

fn ignored(settings: &Settings) -> Result<Vec<&'static str>, ConfigError> {
    let wants =
        format!("a check that can be ignored: {}", catalog::ignorable().collect::<Vec<_>>().join(", "));
    let name = |text: &str| catalog::ignorable().find(|name| *name == text);
    Ok(all(settings, "ignore", &wants, name)?.map_or_else(Vec::new, |(_, names)| names))
}

fn underlay_addrs(settings: &Settings) -> Result<Vec<IpAddr>, ConfigError> {
    let wants = "one address of this host per family";
    let Some((place, addrs)) = all::<IpAddr>(settings, "underlay-addr", wants, |text| text.parse().ok())?
    else {
        return Ok(Vec::new());
    };
    let repeated = addrs.iter().filter(|addr| addr.is_ipv4()).count() > 1
        || addrs.iter().filter(|addr| addr.is_ipv6()).count() > 1;
    match addrs.iter().find(|addr| addr.is_unspecified() || addr.is_multicast()) {
        None if !repeated => Ok(addrs),
        bad => {
            let texts: Vec<_> = addrs.iter().map(IpAddr::to_string).collect();
            let value = bad.map_or_else(|| texts.join(","), IpAddr::to_string);
            Err(ConfigError::Value { place, value, wants: wants.to_owned() })
        }
    }
}

fn source_vips(settings: &Settings) -> Result<(Ipv4Addr, Ipv6Addr), ConfigError> {
    let wants = "one unicast address per family that is on no interface, like 169.254.77.1";
    let (mut v4, mut v6) = (None, None);
    if let Some((place, addrs)) = all::<IpAddr>(settings, "source-vip", wants, |text| text.parse().ok())? {
        for addr in addrs {
            let bad = addr.is_unspecified() || addr.is_multicast() || addr.is_loopback();
            let repeated = match addr {
                IpAddr::V4(addr) => v4.replace(addr).is_some(),
                IpAddr::V6(addr) => v6.replace(addr).is_some(),
            };
            if bad || repeated || addr == IpAddr::V4(Ipv4Addr::BROADCAST) {
                return Err(ConfigError::Value { place, value: addr.to_string(), wants: wants.to_owned() });
            }
        }
    }
    Ok((v4.unwrap_or(DEFAULT_SOURCE_VIP_V4), v6.unwrap_or(DEFAULT_SOURCE_VIP_V6)))
}

fn node_name(settings: &Settings, host_name: impl FnOnce() -> Option<String>) -> Result<String, ConfigError> {
    let wants = "the node's name as kubectl get nodes prints it";
    let name = |text: &str| is_dns_name(text).then(|| text.to_owned());
    if let Some(node) = one(settings, "node", wants, name)? {
        return Ok(node);
    }
    host_name().filter(|name| is_dns_name(name)).ok_or(ConfigError::Missing {
        name: "node",
        remedy: "the host name cannot be read or is no node name; give the name that kubectl get nodes prints",
    })
}

fn is_dns_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    !text.is_empty() && text.len() <= 253 && text.bytes().all(allowed)
}

fn device_name(text: &str) -> Option<String> {
    is_device_name(text).then(|| text.to_owned())
}

/// Whether an interface may be called so, here and by every program it is passed to.
pub(crate) fn is_device_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    (1..=15).contains(&text.len()) && text.bytes().all(allowed) && !text.starts_with('.')
}

fn listener(text: &str) -> Option<Option<SocketAddr>> {
    if text == "off" { Some(None) } else { text.parse().ok().map(Some) }
}

fn absolute_path(text: &str) -> Option<PathBuf> {
    Some(PathBuf::from(text)).filter(|path| path.has_root())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn config(arguments: &[&str]) -> Result<Config, ConfigError> {
        Config::new(&settings::from_arguments(arguments.iter().copied())?, || Some("host".into()))
    }

    /// For each setting: a value that is not the default, as the command line says it.
    const VALUES: [(&str, &str); 38] = [
        ("manifests", "/etc/windlass"),
        ("kubeconfig", "/etc/kubernetes/windlass.conf"),
        ("wait", "60"),
        ("state-dir", "/var/lib/other"),
        ("persist", "true"),
        ("subnet-env", "off"),
        ("node", "worker-9"),
        ("underlay-addr", "192.0.2.1,2001:db8::1"),
        ("underlay-port", "8472"),
        ("vni", "77"),
        ("device", "wl1"),
        ("device-kind", "tap"),
        ("workers", "3"),
        ("service-cidr", "10.96.0.0/12,fd00:96::/112"),
        ("cluster-cidr", "10.244.0.0/16"),
        ("source-vip", "169.254.1.1,fd00::1"),
        ("metrics", "off"),
        ("health", "127.0.0.1:10257"),
        ("admin-socket", if cfg!(windows) { r"\\.\pipe\x" } else { "/run/x.sock" }),
        ("log-format", "json"),
        ("log-file", "/var/log/windlass.log"),
        ("source-ports", "4"),
        ("ring-capacity", "1024"),
        ("strict-vxlan", "true"),
        ("accept-inner-vlan", "true"),
        ("allow-unknown-vteps", "true"),
        ("dscp", "46"),
        ("annotation-prefix", "flannel.example.org"),
        ("poll", "busy"),
        ("pin", "0,1"),
        ("tune-pods", "true"),
        ("ip-masq", "false"),
        ("no-tun-offload", "true"),
        ("no-gso", "true"),
        ("no-gro", "true"),
        ("tunnel-gso", "off"),
        ("ignore", "forward-policy,kube-proxy"),
        ("verbose", "2"),
    ];

    #[test]
    fn every_setting_says_the_same_as_flag_environment_and_file() {
        let default = config(&[]).unwrap();
        let names: Vec<_> = settings::NAMES.into_iter().filter(|name| *name != "config").collect();
        assert_eq!(
            VALUES.map(|(name, _)| name).as_slice(),
            names.as_slice(),
            "a setting without a test value"
        );
        for (name, value) in VALUES {
            let flag = config(&[&format!("--{name}"), value]).unwrap();
            assert_ne!(flag, default, "{name}");

            let file = tempfile::NamedTempFile::new().unwrap();
            let list: Vec<_> = value.split(',').map(|part| format!("\"{part}\"")).collect();
            let yaml = if list.len() > 1 { format!("[{}]", list.join(", ")) } else { value.to_owned() };
            std::fs::write(file.path(), format!("{name}: {yaml}\n")).unwrap();
            let path = file.path().to_str().unwrap();
            assert_eq!(config(&["--config", path]).unwrap(), flag, "{name} in the file");

            assert_eq!(in_environment(name, value), format!("{flag:?}"), "{name} in the environment");
        }
    }

    /// The environment belongs to the process, so another one reads it: this test binary, told to print.
    fn in_environment(name: &str, value: &str) -> String {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "config::tests::prints_the_config_of_the_environment",
                "--nocapture",
                "--ignored",
            ])
            .env(settings::variable(name), value)
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let line = text.lines().find_map(|line| line.split_once("CONFIG "));
        line.unwrap_or_else(|| panic!("{text}")).1.to_owned()
    }

    #[test]
    #[ignore = "is the other half of every_setting_says_the_same_as_flag_environment_and_file"]
    fn prints_the_config_of_the_environment() {
        println!("\nCONFIG {:?}", config(&[]).unwrap());
    }

    #[test]
    fn a_flag_wins_over_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "vni: 5\nworkers: 2\n").unwrap();
        let config = config(&["--config", file.path().to_str().unwrap(), "--vni", "6"]).unwrap();
        assert_eq!((config.vni, config.workers), (Vni::new(6), 2));
    }

    #[test]
    fn bad_values_name_the_setting_the_value_and_the_remedy() {
        for (arguments, expected) in [
            (
                &["--vni", "16777216"][..],
                "--vni: \"16777216\" is not valid: give a number from 0 to 16777215",
            ),
            (&["--vni=-1"], "--vni: \"-1\" is not valid"),
            (&["--underlay-port", "0"], "--underlay-port: \"0\" is not valid: give a port from 1 to 65535"),
            (&["--service-cidr", "10.96.0.1/12"], "give the network's own address, 10.96.0.0/12"),
            (&["--cluster-cidr", "010.244.0.0/16"], "\"010.244.0.0/16\" is not valid"),
            (&["--device", "../x"], "--device: \"../x\" is not valid"),
            (&["--underlay-addr", "0.0.0.0"], "--underlay-addr: \"0.0.0.0\" is not valid"),
            (&["--source-vip", "127.0.0.1"], "--source-vip: \"127.0.0.1\" is not valid"),
            (&["--device-kind", "tup"], "--device-kind: \"tup\" is not valid: give tun or tap"),
            (&["--device-kind", "tap", "--vni", "7"], "--vni is for the TUN device"),
            (&["--log-format", "xml"], "give text or json"),
            (&["--dscp", "64"], "--dscp: \"64\" is not valid"),
            (&["--workers", "0"], "--workers: \"0\" is not valid"),
            (&["--ring-capacity", "200"], "give a power of two from 128 to 65536, in KiB"),
            (&["--metrics", "10249"], "give an address and port like 127.0.0.1:10249, or off"),
        ] {
            let error = config(arguments).unwrap_err().to_string();
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }

    #[test]
    fn an_unknown_key_in_the_file_is_named_with_the_likely_one() {
        let file = tempfile::NamedTempFile::new().unwrap();
        for (yaml, expected) in [
            ("service_cidr: 10.96.0.0/12", "unknown key \"service_cidr\"; write \"service-cidr\""),
            ("vnis: 1", "unknown key \"vnis\"; the keys are manifests, kubeconfig"),
            ("vni: {a: 1}", "is not valid: give a single value"),
            ("vni: [1", "cannot read the configuration file"),
        ] {
            std::fs::write(file.path(), yaml).unwrap();
            let error = config(&["--config", file.path().to_str().unwrap()]).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_node_defaults_to_the_host_name() {
        assert_eq!(config(&[]).unwrap().node, "host");
        let none = Config::new(&settings::from_arguments([]).unwrap(), || None);
        assert!(none.unwrap_err().to_string().starts_with("--node is missing"));
    }
}
