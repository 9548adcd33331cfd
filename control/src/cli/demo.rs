//! `windlass demo`: how it is asked for and how it answers.

use std::time::Duration;

use clap::Args;
use windlass_control::demo;

/// What the demo can be told.
#[derive(Debug, Args)]
pub(super) struct DemoArgs {
    /// How long there is load: 500ms, 5s or 1m
    #[arg(long, default_value = "5s", value_parser = parse_duration)]
    duration: Duration,
    /// Print one JSON object at the end and nothing else
    #[arg(long)]
    json: bool,
}

/// Runs the demo; an error when not everything arrived.
pub(super) fn run(arguments: &DemoArgs) -> anyhow::Result<()> {
    let json = arguments.json;
    let mut say = |line: &str| {
        if !json {
            println!("{line}");
        }
    };
    let report = demo::run(arguments.duration, &mut say)?;
    match json {
        true => println!("{}", serde_json::to_string(&report)?),
        false => println!("\n{report}"),
    }
    match report.failures.first() {
        Some(failure) => anyhow::bail!("not everything arrived: {failure}"),
        None => Ok(()),
    }
}

const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(60);

fn parse_duration(text: &str) -> Result<Duration, String> {
    let wanted = || format!("give a time from {SHORTEST:?} to 1m, like 500ms, 5s or 1m");
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wanted)?;
    let (number, unit) = text.split_at(unit_at);
    let number: u32 = number.parse().map_err(|_| wanted())?;
    let unit = match unit {
        "ms" => Duration::from_millis(1),
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        _ => return Err(wanted()),
    };
    unit.checked_mul(number).filter(|duration| (SHORTEST..=LONGEST).contains(duration)).ok_or_else(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_number_and_a_unit() {
        assert_eq!(parse_duration("500ms"), Ok(Duration::from_millis(500)));
        assert_eq!(parse_duration("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse_duration("1m"), Ok(Duration::from_secs(60)));
        for text in ["", "5", "s", "-5s", "5 s", "1.5s", "0s", "99ms", "61m", "2h", "5d", "99999999999s"] {
            let error = parse_duration(text).unwrap_err();
            assert!(error.contains("500ms, 5s or 1m"), "{text}: {error}");
        }
    }
}
