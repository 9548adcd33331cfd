//! `--pin`: which CPU each worker stays on.

use std::io;

use super::{ConfigError, Settings};

/// Which CPU each worker stays on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pin {
    /// Wherever the system puts it.
    #[default]
    Nowhere,
    /// Worker by worker on the CPUs this process may use, from the first.
    Auto,
    /// Worker by worker on these.
    Cpus(Vec<usize>),
}

/// Why workers cannot be pinned as wanted.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The system does not tell.
    #[error("--pin: the CPUs this process may use are not known: {0}")]
    Unknown(#[from] io::Error),
    /// There is no such CPU, or a cpuset excludes it.
    #[error("--pin: there is no CPU {cpu} that this process may use; it may use {usable}")]
    NoSuchCpu {
        /// The CPU.
        cpu: usize,
        /// What it may use.
        usable: String,
    },
    /// One CPU per worker, neither fewer nor more.
    #[error(
        "--pin: {cpus} CPUs for {workers} workers: give one per worker (--workers {cpus}, or another --pin)"
    )]
    Count {
        /// CPUs named, or usable with `auto`.
        cpus: usize,
        /// Workers configured.
        workers: usize,
    },
}

impl Pin {
    /// What the settings say.
    pub(super) fn new(settings: &Settings) -> Result<Self, ConfigError> {
        let Some((place, texts)) = settings.list("pin") else { return Ok(Self::Nowhere) };
        if texts == ["auto"] {
            return Ok(Self::Auto);
        }
        let cpus: Option<Vec<usize>> = texts.iter().map(|text| text.parse().ok()).collect();
        let is_set = |cpus: &Vec<usize>| {
            !cpus.is_empty() && cpus.iter().enumerate().all(|(index, cpu)| !cpus[..index].contains(cpu))
        };
        let wants = "auto, or one CPU per worker like 0,1, each once".to_owned();
        match cpus.filter(is_set) {
            Some(cpus) => Ok(Self::Cpus(cpus)),
            None => Err(ConfigError::Value { place, value: texts.join(","), wants }),
        }
    }

    /// The CPU of each of `workers`, none where they are not pinned; `usable` tells which CPUs there are.
    ///
    /// # Errors
    /// When a CPU is not usable, or there is not one for each worker.
    pub fn cpus(
        &self,
        workers: usize,
        usable: impl FnOnce() -> io::Result<Vec<usize>>,
    ) -> Result<Vec<usize>, PinError> {
        let (cpus, usable) = match self {
            Self::Nowhere => return Ok(Vec::new()),
            Self::Auto => {
                let usable = usable()?;
                (usable.iter().copied().take(workers).collect(), usable)
            }
            Self::Cpus(cpus) => (cpus.clone(), usable()?),
        };
        if let Some(cpu) = cpus.iter().find(|cpu| !usable.contains(cpu)) {
            let usable: Vec<_> = usable.iter().map(usize::to_string).collect();
            return Err(PinError::NoSuchCpu { cpu: *cpu, usable: usable.join(", ") });
        }
        match cpus.len() == workers {
            true => Ok(cpus),
            false => Err(PinError::Count { cpus: cpus.len(), workers }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::config::settings::from_arguments;

    fn pin(words: &[&str]) -> Result<Pin, ConfigError> {
        Pin::new(&from_arguments(words.iter().copied())?)
    }

    #[test]
    fn cpus_are_a_list_without_repetition_or_auto() {
        assert_eq!(pin(&[]).unwrap(), Pin::Nowhere);
        assert_eq!(pin(&["--pin", "auto"]).unwrap(), Pin::Auto);
        assert_eq!(pin(&["--pin", "3,0"]).unwrap(), Pin::Cpus(vec![3, 0]));
        for bad in ["one", "0,0", "auto,1", "-1", "0-1"] {
            let error = pin(&[&format!("--pin={bad}")]).unwrap_err().to_string();
            assert!(error.contains("--pin") && error.contains("one CPU per worker"), "{error}");
        }
    }

    #[test]
    fn each_worker_gets_one_cpu_that_there_is() {
        let usable = || Ok(vec![0, 2, 4]);
        assert_eq!(Pin::Nowhere.cpus(5, usable).unwrap(), [0; 0]);
        assert_eq!(Pin::Auto.cpus(2, usable).unwrap(), [0, 2]);
        assert_eq!(Pin::Cpus(vec![4, 0]).cpus(2, usable).unwrap(), [4, 0]);
        let none = Pin::Cpus(vec![0, 1]).cpus(2, usable).unwrap_err().to_string();
        assert_eq!(none, "--pin: there is no CPU 1 that this process may use; it may use 0, 2, 4");
        let few = Pin::Auto.cpus(4, usable).unwrap_err().to_string();
        assert!(few.contains("3 CPUs for 4 workers"), "{few}");
        assert!(Pin::Cpus(vec![0, 2]).cpus(1, usable).is_err());
    }
}
