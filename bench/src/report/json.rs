//! The raw figures as JSON.

use anyhow::Result;
use serde::ser::{SerializeSeq, Serializer};
use serde_json::json;

use super::Report;
use crate::measure::Measure;

/// Name and version of the form; the number grows when a reader of the old form would misread the new.
pub const SCHEMA: &str = "windlass-compare/2";

/// The whole report.
///
/// # Errors
/// When a number is not finite.
pub fn render(report: &Report) -> Result<String> {
    Ok(serde_json::to_string_pretty(report)? + "\n")
}

/// Measures without the form of their traffic, which their titles say.
pub(super) fn measures<S: Serializer>(measures: &[Measure], serializer: S) -> Result<S::Ok, S::Error> {
    let mut list = serializer.serialize_seq(Some(measures.len()))?;
    for measure in measures {
        list.serialize_element(
            &json!({ "key": measure.key, "title": measure.title, "figures": measure.figures }),
        )?;
    }
    list.end()
}

#[cfg(test)]
mod tests {
    use crate::report::tests::sample;

    #[test]
    fn json_names_its_schema_and_holds_every_round() -> anyhow::Result<()> {
        let value: serde_json::Value = serde_json::from_str(&super::render(&sample())?)?;
        assert_eq!(value["schema"], super::SCHEMA);
        assert_eq!(value["rows"][0]["values"]["tcp-1/gbit"], serde_json::json!([10.0, 20.0]));
        assert_eq!(value["rows"][2]["skipped"], "openvswitch-switch is not installed");
        assert_eq!(value["measures"][0]["figures"][0]["unit"], "Gbit/s");
        Ok(())
    }
}
