//! The settings as people write them: flags, environment and file, before anything is parsed.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use clap::parser::ValueSource;
use clap::{ArgMatches, Args, CommandFactory, Parser};
use serde_json::Value;

use super::ConfigError;

/// The flags every subcommand that needs a configuration takes. Each also has an environment variable and, by
/// its long name, a key in the file of `--config`.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Settings")]
pub struct SettingsArgs {
    /// YAML file with the settings below, by their long names
    #[arg(long, env = "WINDLASS_CONFIG", value_name = "FILE", hide_env_values = true)]
    pub config: Option<PathBuf>,

    /// Kubernetes objects: files or folders of YAML or JSON
    #[arg(long, env = "WINDLASS_MANIFESTS", value_name = "PATH", num_args = 1.., hide_env_values = true)]
    manifests: Option<Vec<String>>,

    /// Read the cluster from its API server, reached as this kubeconfig says [default: a pod's service account]
    #[arg(long, env = "WINDLASS_KUBECONFIG", value_name = "FILE", hide_env_values = true)]
    kubeconfig: Option<String>,

    /// Seconds to wait for the API server and for this node in the cluster [default: 300]
    #[arg(long, env = "WINDLASS_WAIT", value_name = "SECONDS", hide_env_values = true)]
    wait: Option<String>,

    /// Folder for what outlives a run: MACs, the cluster, connections [default: /var/lib/windlass, on Windows
    /// %ProgramData%\windlass]
    #[arg(long, env = "WINDLASS_STATE_DIR", value_name = "PATH", hide_env_values = true)]
    state_dir: Option<String>,

    /// Leave device, routes and rules standing at exit for the next run or `windlass cleanup` [default: false]
    #[arg(long, env = "WINDLASS_PERSIST", value_name = "BOOL", num_args = 0..=1,
        default_missing_value = "true", hide_env_values = true)]
    persist: Option<String>,

    /// File written for the flannel CNI plugin, or "off" [default: /run/flannel/subnet.env]
    #[arg(long, env = "WINDLASS_SUBNET_ENV", value_name = "PATH", hide_env_values = true)]
    subnet_env: Option<String>,

    /// This node's name [default: NODE_NAME, else the host name in lower case]
    #[arg(long, env = "WINDLASS_NODE", value_name = "NAME", hide_env_values = true)]
    node: Option<String>,

    /// Own underlay address, one per family [default: public-ip-overwrite, InternalIP, default route]
    #[arg(long, env = "WINDLASS_UNDERLAY_ADDR", value_name = "IP", hide_env_values = true)]
    underlay_addr: Option<Vec<String>>,

    /// VXLAN's UDP port [default: net-conf.json, else 4789]
    #[arg(long, env = "WINDLASS_UNDERLAY_PORT", value_name = "PORT", hide_env_values = true)]
    underlay_port: Option<String>,

    /// VXLAN network identifier [default: net-conf.json, else 4096]
    #[arg(long, env = "WINDLASS_VNI", value_name = "VNI", hide_env_values = true)]
    vni: Option<String>,

    /// Name of the overlay device [default: windlass0]
    #[arg(long, env = "WINDLASS_DEVICE", value_name = "NAME", hide_env_values = true)]
    device: Option<String>,

    /// tun for pods, tap for the L2 segments that the manifests describe (Linux) [default: tun]
    #[arg(long, env = "WINDLASS_DEVICE_KIND", value_name = "KIND", hide_env_values = true)]
    device_kind: Option<String>,

    /// Threads that forward packets [default: 1]
    #[arg(long, env = "WINDLASS_WORKERS", value_name = "N", hide_env_values = true)]
    workers: Option<String>,

    /// Where ClusterIPs are allocated [default: ServiceCIDR objects]
    #[arg(long, env = "WINDLASS_SERVICE_CIDR", value_name = "CIDR", hide_env_values = true)]
    service_cidr: Option<Vec<String>>,

    /// Where all pods are [default: net-conf.json, else all podCIDRs]
    #[arg(long, env = "WINDLASS_CLUSTER_CIDR", value_name = "CIDR", hide_env_values = true)]
    cluster_cidr: Option<Vec<String>>,

    /// Source of translated flows, one per family [default: 169.254.77.1,fd77:6e64:6c61:7373::1]
    #[arg(long, env = "WINDLASS_SOURCE_VIP", value_name = "IP", hide_env_values = true)]
    source_vip: Option<Vec<String>>,

    /// Metrics and health over HTTP, or "off" [default: 127.0.0.1:10249]
    #[arg(long, env = "WINDLASS_METRICS", value_name = "ADDR:PORT", hide_env_values = true)]
    metrics: Option<String>,

    /// Health as kube-proxy serves it, or "off" [default: 0.0.0.0:10256 with the API, else off]
    #[arg(long, env = "WINDLASS_HEALTH", value_name = "ADDR:PORT", hide_env_values = true)]
    health: Option<String>,

    /// Unix socket for questions to the running node [default: /run/windlass/admin.sock, on Windows \\.\pipe\windlass-admin]
    #[arg(long, env = "WINDLASS_ADMIN_SOCKET", value_name = "PATH", hide_env_values = true)]
    admin_socket: Option<String>,

    /// Log lines as text or json [default: text]
    #[arg(long, env = "WINDLASS_LOG_FORMAT", value_name = "FORMAT", hide_env_values = true)]
    log_format: Option<String>,

    /// Write log lines into this file, which begins anew at 10 MiB, not to standard error
    #[arg(long, env = "WINDLASS_LOG_FILE", value_name = "FILE", hide_env_values = true)]
    log_file: Option<String>,

    /// UDP source ports to send from [default: 16]
    #[arg(long, env = "WINDLASS_SOURCE_PORTS", value_name = "N", hide_env_values = true)]
    source_ports: Option<String>,

    /// KiB of each ring of the Wintun adapter, a power of two (Windows only) [default: 8192]
    #[arg(long, env = "WINDLASS_RING_CAPACITY", value_name = "KIB", hide_env_values = true)]
    ring_capacity: Option<String>,

    /// Drop packets with a reserved VXLAN bit set [default: false]
    #[arg(long, env = "WINDLASS_STRICT_VXLAN", value_name = "BOOL", num_args = 0..=1,
        default_missing_value = "true", hide_env_values = true)]
    strict_vxlan: Option<String>,

    /// Deliver what inner frames with a VLAN tag carry, without the tag, instead of dropping them [default: false]
    #[arg(long, env = "WINDLASS_ACCEPT_INNER_VLAN", value_name = "BOOL", num_args = 0..=1,
        default_missing_value = "true", hide_env_values = true)]
    accept_inner_vlan: Option<String>,

    /// Accept VXLAN from addresses that are no node's [default: false]
    #[arg(long, env = "WINDLASS_ALLOW_UNKNOWN_VTEPS", value_name = "BOOL", num_args = 0..=1,
        default_missing_value = "true", hide_env_values = true)]
    allow_unknown_vteps: Option<String>,

    /// DSCP of the outer header: copy, or a number 0-63 [default: copy]
    #[arg(long, env = "WINDLASS_DSCP", value_name = "DSCP", hide_env_values = true)]
    dscp: Option<String>,

    /// Prefix of flannel's node annotations [default: flannel.alpha.coreos.com]
    #[arg(long, env = "WINDLASS_ANNOTATION_PREFIX", value_name = "PREFIX", hide_env_values = true)]
    annotation_prefix: Option<String>,

    /// How workers look for packets: adaptive, interrupt or busy [default: adaptive]
    #[arg(long, env = "WINDLASS_POLL", value_name = "MODE", hide_env_values = true)]
    poll: Option<String>,

    /// CPU of each worker, like 0,1, or auto [default: any]
    #[arg(long, env = "WINDLASS_PIN", value_name = "CPUS", hide_env_values = true)]
    pin: Option<Vec<String>>,

    /// Let the pods' host-side veths aggregate what pods send (GRO), until exit [default: false]
    #[arg(long, env = "WINDLASS_TUNE_PODS", value_name = "BOOL", num_args = 0..=1,
        default_missing_value = "true", hide_env_values = true)]
    tune_pods: Option<String>,

    /// Masquerade what pods send to addresses outside the cluster, as flannel does [default: true]
    #[arg(long, env = "WINDLASS_IP_MASQ", value_name = "BOOL", num_args = 0..=1,
        default_missing_value = "true", hide_env_values = true)]
    ip_masq: Option<String>,

    /// Exchange no superpackets with the overlay device [default: false]
    #[arg(long, env = "WINDLASS_NO_TUN_OFFLOAD", value_name = "BOOL", num_args = 0..=1,
        default_missing_value = "true", hide_env_values = true)]
    no_tun_offload: Option<String>,

    /// Send one datagram per message [default: false]
    #[arg(long, env = "WINDLASS_NO_GSO", value_name = "BOOL", num_args = 0..=1,
        default_missing_value = "true", hide_env_values = true)]
    no_gso: Option<String>,

    /// Receive one datagram per message [default: false]
    #[arg(long, env = "WINDLASS_NO_GRO", value_name = "BOOL", num_args = 0..=1,
        default_missing_value = "true", hide_env_values = true)]
    no_gro: Option<String>,

    /// Hand superpackets to the network card encapsulated: auto (where a trial succeeds), on or off [default: auto]
    #[arg(long, env = "WINDLASS_TUNNEL_GSO", value_name = "WHEN", hide_env_values = true)]
    tunnel_gso: Option<String>,

    /// Run in spite of this failed check; "windlass check" names them
    #[arg(long, env = "WINDLASS_IGNORE", value_name = "CHECK", hide_env_values = true)]
    ignore: Option<Vec<String>>,

    /// Log more: 1 for debug, 2 for trace; -v on the command line [default: 0]
    #[arg(short = 'v', long, env = "WINDLASS_VERBOSE", value_name = "LEVEL", num_args = 0..=1,
        default_missing_value = "1", hide_env_values = true)]
    verbose: Option<String>,
}

/// Every setting's long name, as flag and as key of the file.
pub const NAMES: [&str; 39] = [
    "manifests",
    "kubeconfig",
    "wait",
    "state-dir",
    "persist",
    "subnet-env",
    "node",
    "underlay-addr",
    "underlay-port",
    "vni",
    "device",
    "device-kind",
    "workers",
    "service-cidr",
    "cluster-cidr",
    "source-vip",
    "metrics",
    "health",
    "admin-socket",
    "log-format",
    "log-file",
    "source-ports",
    "ring-capacity",
    "strict-vxlan",
    "accept-inner-vlan",
    "allow-unknown-vteps",
    "dscp",
    "annotation-prefix",
    "poll",
    "pin",
    "tune-pods",
    "ip-masq",
    "no-tun-offload",
    "no-gso",
    "no-gro",
    "tunnel-gso",
    "ignore",
    "verbose",
    "config",
];

/// Where a setting was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// On the command line.
    Flag,
    /// In the environment.
    Environment,
    /// In the file of `--config`.
    File(PathBuf),
}

/// A setting's name and where it was found, as error messages say it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The long name.
    pub name: &'static str,
    /// Where it was found.
    pub origin: Origin,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Flag => write!(f, "--{}", self.name),
            Origin::Environment => f.write_str(&variable(self.name)),
            Origin::File(file) => write!(f, "{} in {}", self.name, file.display()),
        }
    }
}

/// The environment variable of a setting.
pub fn variable(name: &str) -> String {
    format!("WINDLASS_{}", name.to_uppercase().replace('-', "_"))
}

/// The settings that were given, as text: flag before environment before file.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    values: BTreeMap<&'static str, (Vec<String>, Origin)>,
}

impl Settings {
    /// The settings of a parsed command line that takes [`SettingsArgs`], with the file it names.
    ///
    /// # Errors
    /// When the file cannot be read, or has an unknown key or a value of the wrong shape.
    pub fn from_matches(matches: &ArgMatches) -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        if let Ok(Some(file)) = matches.try_get_one::<PathBuf>("config") {
            settings.add_file(file)?;
        }
        for name in NAMES {
            let id = name.replace('-', "_");
            if !matches.ids().any(|known| known.as_str() == id) {
                continue;
            }
            let origin = match matches.value_source(&id) {
                Some(ValueSource::CommandLine) => Origin::Flag,
                Some(ValueSource::EnvVariable) => Origin::Environment,
                _ => continue,
            };
            if let Ok(Some(values)) = matches.try_get_many::<String>(&id) {
                settings.values.insert(name, (values.cloned().collect(), origin));
            }
        }
        Ok(settings)
    }

    /// The settings of a file alone, without command line or environment.
    ///
    /// # Errors
    /// As [`Settings::from_matches`].
    pub fn from_file(file: &Path) -> Result<Self, ConfigError> {
        let mut settings = Self::default();
        settings.add_file(file)?;
        Ok(settings)
    }

    fn add_file(&mut self, file: &Path) -> Result<(), ConfigError> {
        let unreadable = |reason: String| ConfigError::File { file: file.to_owned(), reason };
        let text = std::fs::read_to_string(file).map_err(|error| unreadable(error.to_string()))?;
        if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
            return Ok(());
        }
        let options = serde_saphyr::options! { strict_booleans: true };
        let keys: BTreeMap<String, Value> =
            serde_saphyr::from_str_with_options(&text, options).map_err(|error| {
                let said = error.without_snippet();
                unreadable(said.render_with_formatter(&serde_saphyr::UserMessageFormatter))
            })?;
        for (key, value) in keys {
            let Some(name) = NAMES.into_iter().find(|name| *name == key && *name != "config") else {
                return Err(ConfigError::UnknownKey { file: file.to_owned(), key });
            };
            let place = Place { name, origin: Origin::File(file.to_owned()) };
            self.values.insert(name, (texts(&place, value)?, place.origin));
        }
        Ok(())
    }

    /// The place and text of a setting that takes one value.
    ///
    /// # Errors
    /// When the file gives a list.
    pub(super) fn one(&self, name: &'static str) -> Result<Option<(Place, &str)>, ConfigError> {
        let Some((values, origin)) = self.values.get(name) else { return Ok(None) };
        let place = Place { name, origin: origin.clone() };
        match values.as_slice() {
            [value] => Ok(Some((place, value))),
            _ => Err(ConfigError::Value { place, value: values.join(","), wants: "one value".into() }),
        }
    }

    /// The place and texts of a setting that takes a list, split at commas.
    pub(super) fn list(&self, name: &'static str) -> Option<(Place, Vec<&str>)> {
        let (values, origin) = self.values.get(name)?;
        let place = Place { name, origin: origin.clone() };
        let split = name != "manifests" || *origin == Origin::Environment;
        let parts = values.iter().flat_map(|value| match split {
            true => value.split(',').map(str::trim).filter(|part| !part.is_empty()).collect(),
            false => vec![value.as_str()],
        });
        Some((place, parts.collect()))
    }
}

fn texts(place: &Place, value: Value) -> Result<Vec<String>, ConfigError> {
    let scalar = |value: Value| match value {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        Value::Bool(yes) => Ok(yes.to_string()),
        other => Err(ConfigError::Value {
            place: place.clone(),
            value: other.to_string(),
            wants: "a single value, or a list of single values".into(),
        }),
    };
    match value {
        Value::Array(items) => items.into_iter().map(scalar).collect(),
        other => Ok(vec![scalar(other)?]),
    }
}

/// A command line of settings only: what [`SettingsArgs`] say when nothing else is around.
#[derive(Debug, Parser)]
#[command(name = "windlass")]
struct SettingsOnly {
    #[command(flatten)]
    _settings: SettingsArgs,
}

/// Reads settings from these arguments and the process's environment.
///
/// # Errors
/// As clap's for the arguments, and as [`Settings::from_matches`].
pub fn from_arguments<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Result<Settings, ConfigError> {
    let arguments = std::iter::once("windlass").chain(arguments);
    let matches = SettingsOnly::command()
        .try_get_matches_from(arguments)
        .map_err(|error| ConfigError::Arguments(error.to_string()))?;
    Settings::from_matches(&matches)
}
