//! Windlass as a service of Windows: what is registered where, in which order, and how all of it goes.
//!
//! The order is the same for every [`Registry`]; `windows::System` is Windows', and tests record.

#[cfg(windows)]
pub mod windows;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The name of the service, and of its source in the event log.
pub const NAME: &str = "windlass";

/// The name of the firewall rule.
pub const RULE: &str = "windlass-vxlan";

/// When the service is started again after its first, second and every later failure.
pub const RESTART_AFTER: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_secs(30), Duration::from_secs(60)];

/// After how long without a failure the next one is the first again.
pub const FORGET_FAILURES_AFTER: Duration = Duration::from_secs(3600);

/// A service to install.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// windlass.exe, by its absolute path.
    pub program: PathBuf,
    /// The file of its settings, by its absolute path.
    pub config_file: PathBuf,
    /// VXLAN's UDP port, where the file says it.
    pub port: Option<u16>,
}

/// What Windows keeps of a service.
pub trait Registry {
    /// Makes the event log's viewer find the text of our entries.
    fn add_event_source(&mut self) -> io::Result<()>;
    /// Takes it back.
    fn remove_event_source(&mut self) -> io::Result<()>;
    /// Runs netsh with these arguments.
    fn netsh(&mut self, arguments: &[String]) -> io::Result<()>;
    /// Adds a service that starts with Windows, as LocalSystem, and runs the program with these arguments.
    fn create_service(&mut self, program: &Path, arguments: &[String]) -> io::Result<()>;
    /// Makes Windows start the service again when it fails.
    fn set_recovery(&mut self) -> io::Result<()>;
    /// Deletes the service, which has been stopped.
    fn delete_service(&mut self) -> io::Result<()>;
}

/// What of installing or uninstalling could not be done.
#[derive(Debug, thiserror::Error)]
#[error("{}", steps.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct ServiceError {
    steps: Vec<Refused>,
}

/// A step that Windows has refused.
#[derive(Debug)]
struct Refused {
    step: &'static str,
    error: io::Error,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { step, error } = self;
        write!(f, "{step}: {error}")?;
        if error.kind() == io::ErrorKind::PermissionDenied {
            f.write_str(" (run as Administrator)")?;
        }
        Ok(())
    }
}

/// Installs the service, which begins with the step that another one of this name would refuse. What was done is undone
/// when a later step is refused.
///
/// # Errors
/// Names the step that was refused.
pub fn install(registry: &mut dyn Registry, plan: &Plan) -> Result<(), ServiceError> {
    let mut done: Vec<Undo> = Vec::new();
    let mut install = || -> Result<(), Refused> {
        let arguments = arguments(&plan.config_file);
        step("creating the service", registry.create_service(&plan.program, &arguments))?;
        done.push(|registry| registry.delete_service());
        step("setting the recovery actions", registry.set_recovery())?;
        step("registering the event log source", registry.add_event_source())?;
        done.push(|registry| registry.remove_event_source());
        step("adding the firewall rule", registry.netsh(&add_rule(plan)))
    };
    let Err(refused) = install() else { return Ok(()) };
    for undo in done.into_iter().rev() {
        // What cannot be undone is what uninstall would not get rid of either; the refusal matters more.
        let _ = undo(registry);
    }
    Err(ServiceError { steps: vec![refused] })
}

type Undo = fn(&mut dyn Registry) -> io::Result<()>;

/// Removes all that [`install`] has made, each thing whatever became of the others. The service must not run.
///
/// # Errors
/// Names everything that is left.
pub fn uninstall(registry: &mut dyn Registry) -> Result<(), ServiceError> {
    let outcomes = [
        step("deleting the firewall rule", registry.netsh(&delete_rule())),
        step("removing the event log source", registry.remove_event_source()),
        step("deleting the service", registry.delete_service()),
    ];
    let steps: Vec<_> = outcomes.into_iter().filter_map(Result::err).collect();
    if steps.is_empty() { Ok(()) } else { Err(ServiceError { steps }) }
}

fn step(step: &'static str, outcome: io::Result<()>) -> Result<(), Refused> {
    outcome.map_err(|error| Refused { step, error })
}

/// What the service manager starts the program with.
fn arguments(config_file: &Path) -> Vec<String> {
    ["service", "run", "--config"].map(str::to_owned).into_iter().chain([path(config_file)]).collect()
}

/// Lets VXLAN in, to this program alone: to the port that is configured, or to whichever the cluster names.
fn add_rule(plan: &Plan) -> Vec<String> {
    let mut rule = vec![
        format!("name={RULE}"),
        "dir=in".to_owned(),
        "action=allow".to_owned(),
        "protocol=UDP".to_owned(),
        format!("program={}", path(&plan.program)),
    ];
    rule.extend(plan.port.map(|port| format!("localport={port}")));
    advfirewall("add", rule)
}

fn delete_rule() -> Vec<String> {
    advfirewall("delete", vec![format!("name={RULE}")])
}

fn advfirewall(verb: &str, rule: Vec<String>) -> Vec<String> {
    ["advfirewall", "firewall", verb, "rule"].map(str::to_owned).into_iter().chain(rule).collect()
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A stand-in for Windows that records what it is asked for.
    #[derive(Default)]
    struct Recorder {
        calls: Vec<String>,
        refused: Option<&'static str>,
    }

    impl Recorder {
        fn record(&mut self, call: String) -> io::Result<()> {
            let is_refused = self.refused.is_some_and(|refused| call.starts_with(refused));
            self.calls.push(call);
            if is_refused { Err(io::ErrorKind::PermissionDenied.into()) } else { Ok(()) }
        }
    }

    impl Registry for Recorder {
        fn add_event_source(&mut self) -> io::Result<()> {
            self.record("add event source".into())
        }
        fn remove_event_source(&mut self) -> io::Result<()> {
            self.record("remove event source".into())
        }
        fn netsh(&mut self, arguments: &[String]) -> io::Result<()> {
            self.record(format!("netsh {}", arguments.join("|")))
        }
        fn create_service(&mut self, program: &Path, arguments: &[String]) -> io::Result<()> {
            self.record(format!("create service {}|{}", program.display(), arguments.join("|")))
        }
        fn set_recovery(&mut self) -> io::Result<()> {
            self.record("set recovery".into())
        }
        fn delete_service(&mut self) -> io::Result<()> {
            self.record("delete service".into())
        }
    }

    fn plan() -> Plan {
        Plan {
            program: r"D:\Program Files\windlass.exe".into(),
            config_file: r"D:\etc\my node.yaml".into(),
            port: Some(4789),
        }
    }

    const INSTALLED: [&str; 4] = [
        r"create service D:\Program Files\windlass.exe|service|run|--config|D:\etc\my node.yaml",
        "set recovery",
        "add event source",
        r"netsh advfirewall|firewall|add|rule|name=windlass-vxlan|dir=in|action=allow|protocol=UDP|program=D:\Program Files\windlass.exe|localport=4789",
    ];

    const UNINSTALLED: [&str; 3] = [
        "netsh advfirewall|firewall|delete|rule|name=windlass-vxlan",
        "remove event source",
        "delete service",
    ];

    #[test]
    fn a_service_is_installed_in_order_and_uninstalled_backwards() {
        let mut recorder = Recorder::default();
        install(&mut recorder, &plan()).unwrap();
        assert_eq!(recorder.calls, INSTALLED);
        recorder.calls.clear();
        uninstall(&mut recorder).unwrap();
        assert_eq!(recorder.calls, UNINSTALLED);
    }

    #[test]
    fn without_a_configured_port_the_rule_lets_in_what_comes_to_the_program() {
        let rule = add_rule(&Plan { port: None, ..plan() });
        assert!(rule.iter().all(|argument| !argument.starts_with("localport")), "{rule:?}");
    }

    #[test]
    fn a_refused_step_is_named_and_what_was_done_is_undone() {
        for (refused, calls, undone, named) in [
            ("create service", 1, &[][..], "creating the service"),
            ("set recovery", 2, &UNINSTALLED[2..], "setting the recovery actions"),
            ("add event source", 3, &UNINSTALLED[2..], "registering the event log source"),
            ("netsh advfirewall|firewall|add", 4, &UNINSTALLED[1..], "adding the firewall rule"),
        ] {
            let mut recorder = Recorder { refused: Some(refused), ..Recorder::default() };
            let error = install(&mut recorder, &plan()).unwrap_err().to_string();
            assert!(error.starts_with(named) && error.ends_with("(run as Administrator)"), "{error}");
            assert_eq!(recorder.calls[calls..], *undone, "{refused}");
        }
    }

    #[test]
    fn uninstalling_goes_on_after_a_refusal_and_names_all_that_is_left() {
        let mut recorder = Recorder { refused: Some("delete service"), ..Recorder::default() };
        let error = uninstall(&mut recorder).unwrap_err().to_string();
        assert!(error.starts_with("deleting the service: "), "{error}");
        assert_eq!(recorder.calls, UNINSTALLED);
    }
}
