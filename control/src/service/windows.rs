//! The service manager of Windows, and what else a service leaves there.

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use windlass_dataplane::device::{self, EventKind, EventSource};
use windows_service::service::{
    Service, ServiceAccess, ServiceAction, ServiceActionType, ServiceControl, ServiceControlAccept,
    ServiceErrorControl, ServiceExitCode, ServiceFailureActions, ServiceFailureResetPeriod, ServiceInfo,
    ServiceStartType, ServiceState, ServiceStatus, ServiceType,
};
use windows_service::service_control_handler::{self, ServiceControlHandlerResult, ServiceStatusHandle};
use windows_service::service_manager::{ServiceManager, ServiceManagerAccess};
use windows_service::{define_windows_service, service_dispatcher};

use super::{FORGET_FAILURES_AFTER, NAME, RESTART_AFTER, Registry};
use crate::system;

/// How long it may take to remove routes and adapter.
const STOP_LIMIT: Duration = Duration::from_secs(60);

/// How long a service that ends at once, as with a mistake in its settings, is waited for.
const START_LIMIT: Duration = Duration::from_secs(2);

/// How often a state is asked for.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// This Windows.
#[derive(Debug, Default)]
pub struct System;

impl Registry for System {
    fn add_event_source(&mut self) -> io::Result<()> {
        EventSource::register(NAME)
    }

    fn remove_event_source(&mut self) -> io::Result<()> {
        EventSource::unregister(NAME)
    }

    fn netsh(&mut self, arguments: &[String]) -> io::Result<()> {
        let program = device::system_folder()?.join("netsh.exe");
        let output = Command::new(&program).args(arguments).stdin(Stdio::null()).output()?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stdout).split_whitespace().collect::<Vec<_>>().join(" ");
        Err(io::Error::other(format!("{} {}: {said}", program.display(), arguments.join(" "))))
    }

    fn create_service(&mut self, program: &Path, arguments: &[String]) -> io::Result<()> {
        let info = ServiceInfo {
            name: NAME.into(),
            display_name: "Windlass".into(),
            service_type: ServiceType::OWN_PROCESS,
            start_type: ServiceStartType::AutoStart,
            error_control: ServiceErrorControl::Normal,
            executable_path: program.to_owned(),
            launch_arguments: arguments.iter().map(OsString::from).collect(),
            dependencies: Vec::new(),
            // LocalSystem.
            account_name: None,
            account_password: None,
        };
        let service = manager(ServiceManagerAccess::CREATE_SERVICE)?
            .create_service(&info, ServiceAccess::CHANGE_CONFIG)
            .map_err(into_io)?;
        service.set_description("Carries pod traffic of this Kubernetes node in VXLAN").map_err(into_io)
    }

    fn set_recovery(&mut self) -> io::Result<()> {
        let service = open(ServiceAccess::CHANGE_CONFIG | ServiceAccess::START)?;
        let restart = |delay| ServiceAction { action_type: ServiceActionType::Restart, delay };
        let actions = ServiceFailureActions {
            reset_period: ServiceFailureResetPeriod::After(FORGET_FAILURES_AFTER),
            reboot_msg: None,
            command: None,
            actions: Some(RESTART_AFTER.map(restart).into()),
        };
        service.update_failure_actions(actions).map_err(into_io)?;
        // A service that reports an exit code has failed too.
        match service.set_failure_actions_on_non_crash_failures(true).map_err(into_io) {
            // wine's service manager cannot be told so.
            Err(error) if error.raw_os_error() == Some(INVALID_LEVEL) => Ok(()),
            outcome => outcome,
        }
    }

    fn delete_service(&mut self) -> io::Result<()> {
        open(ServiceAccess::DELETE)?.delete().map_err(into_io)
    }
}

/// Starts the service and looks whether it stays.
///
/// # Errors
/// When it cannot be started, or ends at once.
pub fn start() -> io::Result<()> {
    let service = open(ServiceAccess::START | ServiceAccess::QUERY_STATUS)?;
    service.start::<&str>(&[]).map_err(into_io)?;
    let begun = Instant::now();
    while begun.elapsed() < START_LIMIT {
        let status = service.query_status().map_err(into_io)?;
        if status.current_state == ServiceState::Stopped {
            return Err(io::Error::other(format!("it ended at once with {}", said(status.exit_code))));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

/// Stops the service and waits until it has ended; `false` where it did not run.
///
/// # Errors
/// When it cannot be stopped, or does not end.
pub fn stop() -> io::Result<bool> {
    let service = open(ServiceAccess::STOP | ServiceAccess::QUERY_STATUS)?;
    let state = || service.query_status().map(|status| status.current_state).map_err(into_io);
    if state()? == ServiceState::Stopped {
        return Ok(false);
    }
    service.stop().map_err(into_io)?;
    let begun = Instant::now();
    while state()? != ServiceState::Stopped {
        if begun.elapsed() > STOP_LIMIT {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it has not stopped in 60 s"));
        }
        thread::sleep(LOOK_EVERY);
    }
    Ok(true)
}

/// The state of the service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// Whether it runs.
    pub is_running: bool,
    /// What people want to know, one line each.
    pub lines: Vec<String>,
}

/// Asks for the state; `None` where the service is not installed.
///
/// # Errors
/// When the service manager does not answer.
pub fn status() -> io::Result<Option<Status>> {
    let service = match open(ServiceAccess::QUERY_STATUS | ServiceAccess::QUERY_CONFIG) {
        Ok(service) => service,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let status = service.query_status().map_err(into_io)?;
    let config = service.query_config().map_err(into_io)?;
    let is_running = status.current_state == ServiceState::Running;
    let mut lines = vec![format!("state:    {:?}", status.current_state)];
    match status.process_id {
        Some(id) => lines.push(format!("process:  {id}")),
        None => lines.push(format!("ended:    {}", said(status.exit_code))),
    }
    lines.push(format!("starts:   {:?}", config.start_type));
    lines.push(format!("command:  {}", config.executable_path.display()));
    Ok(Some(Status { is_running, lines }))
}

fn said(code: ServiceExitCode) -> String {
    match code {
        ServiceExitCode::Win32(0) => "no error".to_owned(),
        ServiceExitCode::Win32(code) => format!("Windows' error {code}"),
        ServiceExitCode::ServiceSpecific(code) => format!("exit code {code}"),
    }
}

fn manager(access: ServiceManagerAccess) -> io::Result<ServiceManager> {
    ServiceManager::local_computer(None::<&str>, ServiceManagerAccess::CONNECT | access).map_err(into_io)
}

fn open(access: ServiceAccess) -> io::Result<Service> {
    manager(ServiceManagerAccess::CONNECT)?.open_service(NAME, access).map_err(|error| match into_io(error) {
        error if error.raw_os_error() == Some(NO_SUCH_SERVICE) => {
            io::Error::new(io::ErrorKind::NotFound, "the service is not installed; windlass service install")
        }
        error => error,
    })
}

/// ERROR_INVALID_LEVEL.
const INVALID_LEVEL: i32 = 124;

/// ERROR_SERVICE_DOES_NOT_EXIST.
const NO_SUCH_SERVICE: i32 = 1060;

fn into_io(error: windows_service::Error) -> io::Error {
    match error {
        windows_service::Error::Winapi(error) => error,
        other => io::Error::other(other),
    }
}

/// What the service does, and how it ends: 0 well, else why it failed.
pub type Body = Box<dyn FnOnce(&EventLog) -> u8 + Send>;

static BODY: Mutex<Option<Body>> = Mutex::new(None);
static STATUS: OnceLock<ServiceStatusHandle> = OnceLock::new();

/// Runs as the service that Windows has started; returns when it has stopped.
///
/// # Errors
/// When it was not Windows' service manager who started this program.
pub fn run(body: Body) -> io::Result<()> {
    *BODY.lock().unwrap_or_else(PoisonError::into_inner) = Some(body);
    service_dispatcher::start(NAME, service_main).map_err(into_io)
}

define_windows_service!(service_main, main);

fn main(_arguments: Vec<OsString>) {
    let events = EventLog::open();
    let Ok(status) = service_control_handler::register(NAME, control) else {
        return events.error("cannot listen to the service manager");
    };
    let _ = STATUS.set(status);
    report(ServiceState::Running, ServiceExitCode::NO_ERROR);
    let body = BODY.lock().unwrap_or_else(PoisonError::into_inner).take();
    let code = body.map_or(0, |body| body(&events));
    let code =
        if code == 0 { ServiceExitCode::NO_ERROR } else { ServiceExitCode::ServiceSpecific(code.into()) };
    report(ServiceState::Stopped, code);
}

fn control(control: ServiceControl) -> ServiceControlHandlerResult {
    match control {
        ServiceControl::Stop | ServiceControl::Shutdown => {
            report(ServiceState::StopPending, ServiceExitCode::NO_ERROR);
            system::stop();
            ServiceControlHandlerResult::NoError
        }
        ServiceControl::Interrogate => ServiceControlHandlerResult::NoError,
        _ => ServiceControlHandlerResult::NotImplemented,
    }
}

fn report(state: ServiceState, exit_code: ServiceExitCode) {
    let runs = state == ServiceState::Running;
    let accepts = ServiceControlAccept::STOP | ServiceControlAccept::SHUTDOWN;
    let status = ServiceStatus {
        service_type: ServiceType::OWN_PROCESS,
        current_state: state,
        controls_accepted: if runs { accepts } else { ServiceControlAccept::empty() },
        exit_code,
        checkpoint: 0,
        wait_hint: if state == ServiceState::StopPending { STOP_LIMIT } else { Duration::ZERO },
        process_id: None,
    };
    if let Some(Err(error)) = STATUS.get().map(|handle| handle.set_service_status(status)) {
        tracing::warn!("the service manager is not told of {state:?}: {}", into_io(error));
    }
}

/// The event log, as far as it can be written.
#[derive(Debug)]
pub struct EventLog(Option<EventSource>);

impl EventLog {
    fn open() -> Self {
        Self(EventSource::open(NAME).ok())
    }

    /// Adds an entry of what went well.
    pub fn information(&self, text: &str) {
        self.report(EventKind::Information, text);
    }

    /// Adds an entry of what has failed.
    pub fn error(&self, text: &str) {
        self.report(EventKind::Error, text);
    }

    fn report(&self, kind: EventKind, text: &str) {
        if let Some(Err(error)) = self.0.as_ref().map(|source| source.report(kind, text)) {
            tracing::warn!("no entry in the event log: {error}");
        }
    }
}
