//! Looks at everything [`Survey`] holds, and changes nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ipnet::IpNet;

use super::netlink::{self, Netlink};
use super::port::{self, NamespaceLock};
use super::{links, offloads, route_table, routes};
use crate::device::config::DeviceError;
use crate::device::host::Family;
use crate::device::survey::{Seen, Survey, SurveyedLink, SurveyedProcess, SurveyedRoute};

/// How long a program may take to print rules: one that hangs must not hang the check.
const PROGRAM_LIMIT: Duration = Duration::from_secs(10);

/// Where flannel writes what its CNI plugin reads.
const SUBNET_ENV: &str = "/run/flannel/subnet.env";

/// The bit of CAP_NET_ADMIN (linux/capability.h).
const CAP_NET_ADMIN: u32 = 12;

/// Looks at the host, and at who listens on these TCP ports.
pub fn survey(tcp_ports: &[u16]) -> Survey {
    let nft = program("nft");
    let ruleset = match &nft {
        Some(nft) => output(nft, &["-j", "list", "ruleset"]),
        None => Err("the program nft is missing".to_owned()),
    };
    Survey {
        net_admin: net_admin(),
        tun: tun(),
        windows: None,
        iptables_rules: iptables_rules(&ruleset),
        ruleset,
        nft: Ok(nft.is_some()),
        ipvs: ipvs(),
        kernel_offloads: offloads::of_kernel(),
        links: netlink_seen("interfaces", surveyed_links),
        addresses: links::local_addresses().map_err(|error| error.to_string()),
        default_routes: default_routes(),
        routes: netlink_seen("routes", surveyed_routes),
        processes: processes(),
        tcp_holders: tcp_holders(tcp_ports),
        sysctls: sysctls(),
        subnet_env: subnet_env(),
        clock: clock(),
    }
}

/// Whether VXLAN's port can be had on these addresses; it is given back at once.
///
/// # Errors
/// Who has it.
pub fn probe_vxlan_port(addresses: &[IpAddr], port: u16) -> Result<(), DeviceError> {
    port::lock(addresses, port).map(drop)
}

/// Who manages the host, if another run of this program does.
pub fn managed_by() -> Option<String> {
    match NamespaceLock::take(super::host::LOCK) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            let holder = NamespaceLock::holder(super::host::LOCK);
            Some(
                holder
                    .map_or("another windlass".to_owned(), |process| format!("another windlass, {process},")),
            )
        }
        _ => None,
    }
}

fn net_admin() -> Seen<bool> {
    let status = read("/proc/thread-self/status")?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or_default();
    let mask = u64::from_str_radix(effective.trim(), 16);
    mask.map(|mask| mask >> CAP_NET_ADMIN & 1 == 1)
        .map_err(|_| "/proc/thread-self/status has no CapEff".to_owned())
}

fn tun() -> Seen<bool> {
    match fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Ok(true),
        Err(error) => match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Ok(false),
            _ => Err(format!("/dev/net/tun: {error}")),
        },
    }
}

/// Legacy tables are asked for only where they exist: the program itself would make them. Of iptables-nft's rules
/// nft shows all but the extensions they use.
fn iptables_rules(ruleset: &Seen<String>) -> Seen<String> {
    let families = [
        ("/proc/thread-self/net/ip_tables_names", "iptables-legacy-save"),
        ("/proc/thread-self/net/ip6_tables_names", "ip6tables-legacy-save"),
    ];
    let mut rules = String::new();
    for (names, save) in families {
        if !Path::new(names).exists() || read(names)?.trim().is_empty() {
            continue;
        }
        let save = program(save).ok_or_else(|| format!("the program {save} is missing"))?;
        rules.push_str(&output(&save, &[])?);
    }
    if ruleset.as_ref().is_ok_and(|ruleset| ruleset.contains("\"xt\"")) {
        let saves = ["iptables-nft-save", "ip6tables-nft-save"];
        for save in saves.into_iter().filter_map(program) {
            rules.push_str(&output(&save, &[])?);
        }
    }
    Ok(rules)
}

/// The table's three lines of heading are left out, and the real servers, which are indented.
fn ipvs() -> Seen<Vec<String>> {
    match fs::read_to_string("/proc/thread-self/net/ip_vs") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(format!("/proc/net/ip_vs: {error}")),
        Ok(table) => Ok(virtual_services(&table)),
    }
}

fn virtual_services(table: &str) -> Vec<String> {
    let is_service =
        |line: &&str| ["TCP ", "UDP ", "SCTP ", "FWM "].iter().any(|kind| line.starts_with(kind));
    table.lines().filter(is_service).map(|line| line.trim_end().to_owned()).collect()
}

fn netlink_seen<T>(what: &str, look: impl FnOnce(&Netlink) -> io::Result<T>) -> Seen<T> {
    Netlink::open().and_then(|netlink| look(&netlink)).map_err(|error| format!("{what}: {error}"))
}

fn surveyed_links(netlink: &Netlink) -> io::Result<Vec<SurveyedLink>> {
    let surveyed = |link: links::Link| SurveyedLink {
        offloads: offloads::of(&link.name),
        kept: link.is_kept(),
        name: link.name,
        index: link.index,
        mtu: link.mtu,
        kind: link.kind,
        vxlan_vni: link.vxlan_vni,
        vxlan_port: link.vxlan_port,
    };
    Ok(links::links(netlink)?.into_iter().map(surveyed).collect())
}

fn default_routes() -> Seen<Vec<IpAddr>> {
    let mut found = Vec::new();
    for family in [Family::V4, Family::V6] {
        let interface = links::default_route_interface(family).map_err(|error| error.to_string())?;
        found.extend(interface.and_then(|interface| interface.addresses.first().copied()));
    }
    Ok(found)
}

fn surveyed_routes(netlink: &Netlink) -> io::Result<Vec<SurveyedRoute>> {
    let links = links::links(netlink)?;
    route_table::every(netlink, |header, rest| surveyed_route(header, rest, &links))
}

fn surveyed_route(
    header: &[u8; route_table::HEADER_LEN],
    rest: &[u8],
    links: &[links::Link],
) -> Option<SurveyedRoute> {
    let unspecified = match i32::from(header[0]) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    let is_multicast = header[7] == libc::RTN_MULTICAST;
    if header[4] != libc::RT_TABLE_MAIN || is_multicast {
        return None;
    }
    let destination = match netlink::attribute(rest, libc::RTA_DST) {
        Some(destination) => netlink::address(destination)?,
        None => unspecified,
    };
    let index = netlink::attribute(rest, libc::RTA_OIF).and_then(netlink::number);
    let interface = index.and_then(|index| links.iter().find(|link| link.index == index));
    Some(SurveyedRoute {
        destination: IpNet::new(destination, header[1]).ok()?,
        interface: interface.filter(|_| header[7] == libc::RTN_UNICAST).map(|link| link.name.clone()),
        gateway: netlink::attribute(rest, libc::RTA_GATEWAY).and_then(netlink::address),
        ours: header[5] == routes::PROTOCOL,
        advertised: header[5] == RTPROT_RA,
    })
}

/// Processes of other network namespaces, such as those of containers, do not matter.
fn processes() -> Seen<Vec<SurveyedProcess>> {
    let namespace = |process: &Path| fs::read_link(process.join("ns/net"));
    let ours = namespace(Path::new("/proc/thread-self")).map_err(|error| format!("processes: {error}"))?;
    let entries = fs::read_dir("/proc").map_err(|error| format!("processes: {error}"))?;
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let theirs = namespace(&entry.path());
        let is_here = theirs.as_ref().is_ok_and(|theirs| *theirs == ours);
        let is_hidden = theirs.is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
        if is_here || is_hidden {
            let name = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            found.push(SurveyedProcess { id, name: name.trim_end().to_owned(), is_here });
        }
    }
    Ok(found)
}

fn tcp_holders(ports: &[u16]) -> Seen<BTreeMap<u16, String>> {
    let listening = |port: u16| {
        let table = |name: &str| read(&format!("/proc/thread-self/net/{name}"));
        // A kernel without IPv6 has no tcp6.
        let mut inodes = port::inodes_of(&table("tcp")?, port, Some(TCP_LISTEN));
        inodes.extend(port::inodes_of(&table("tcp6").unwrap_or_default(), port, Some(TCP_LISTEN)));
        Ok::<_, String>(inodes)
    };
    let mut holders = BTreeMap::new();
    for port in ports {
        let inodes = listening(*port)?;
        if !inodes.is_empty() {
            let holder = port::process_with_socket(&inodes);
            let unseen = || "a process this one may not see".to_owned();
            holders.insert(*port, holder.unwrap_or_else(unseen));
        }
    }
    Ok(holders)
}

/// The protocol of routes that router advertisements made (linux/rtnetlink.h).
const RTPROT_RA: u8 = 9;

/// The state column of a listening socket (linux net/tcp_states.h).
const TCP_LISTEN: &str = "0A";

fn sysctls() -> BTreeMap<String, String> {
    let mut paths = vec![
        "net/ipv4/ip_forward".to_owned(),
        "net/ipv6/conf/all/forwarding".to_owned(),
        "net/bridge/bridge-nf-call-iptables".to_owned(),
        "net/bridge/bridge-nf-call-ip6tables".to_owned(),
    ];
    for (family, name) in [("ipv4", "rp_filter"), ("ipv6", "accept_ra")] {
        let interfaces = fs::read_dir(format!("/proc/sys/net/{family}/conf")).into_iter().flatten().flatten();
        let interface = |entry: fs::DirEntry| entry.file_name().into_string().ok();
        paths.extend(
            interfaces.filter_map(interface).map(|entry| format!("net/{family}/conf/{entry}/{name}")),
        );
    }
    let value = |path: String| {
        let text = fs::read_to_string(Path::new("/proc/sys").join(&path)).ok()?;
        Some((path, text.trim_end().to_owned()))
    };
    paths.into_iter().filter_map(value).collect()
}

fn subnet_env() -> Seen<Option<String>> {
    match fs::read_to_string(SUBNET_ENV) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("{SUBNET_ENV}: {error}")),
    }
}

fn clock() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn read(path: &str) -> Seen<String> {
    fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))
}

/// Where a program lies: in PATH, or where a short PATH leaves out the administrator's programs.
fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// What a program prints. It is killed when it takes too long.
fn output(program: &Path, arguments: &[&str]) -> Seen<String> {
    let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let failed = |error: io::Error| format!("{name}: {error}");
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let (done, finished) = mpsc::channel();
    let complaints = thread::spawn(move || text(stderr));
    thread::spawn(move || done.send(text(stdout)));
    let Ok(printed) = finished.recv_timeout(PROGRAM_LIMIT) else {
        // It may have ended just now; it is reaped in either case.
        let _ = child.kill();
        let _ = child.wait();
        return Err(format!("{name} has not ended after {PROGRAM_LIMIT:?}"));
    };
    let status = child.wait().map_err(failed)?;
    if status.success() {
        return Ok(printed);
    }
    let complaint = complaints.join().unwrap_or_default();
    Err(format!("{name}: {}", complaint.lines().next().unwrap_or("it failed")))
}

fn text(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    // What was printed before a pipe broke is still worth having.
    let _ = from.map(|mut from| from.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtual_services_are_read_without_headings_and_real_servers() {
        let table = "IP Virtual Server version 1.2.1 (size=4096)\n\
                     Prot LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n\
                     TCP  0A600001:01BB rr \n  -> C0A80128:192B      Masq    1      0          0\n";
        assert_eq!(virtual_services(table), ["TCP  0A600001:01BB rr"]);
    }

    #[test]
    fn a_program_that_fails_says_why() {
        let shell = program("sh").unwrap();
        assert_eq!(output(&shell, &["-c", "echo hello"]).unwrap(), "hello\n");
        let complaint = output(&shell, &["-c", "echo no >&2; exit 3"]).unwrap_err();
        assert_eq!(complaint, "sh: no");
    }

    #[test]
    fn the_loopback_and_its_address_are_seen() {
        let survey = survey(&[]);
        assert!(survey.links.unwrap().iter().any(|link| link.name == "lo"));
        assert!(survey.net_admin.is_ok() && survey.clock > 0);
    }
}
