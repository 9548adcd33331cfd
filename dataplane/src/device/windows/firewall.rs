//! What Windows' firewall is told, as its service keeps it in the registry: netsh says the same in the user's language.

use windows_registry::{Key, LOCAL_MACHINE};

use crate::device::survey::{FirewallSurvey, Seen};

/// The local policy: one key for each profile, and the rules.
const POLICY: &str = r"SYSTEM\CurrentControlSet\Services\SharedAccess\Parameters\FirewallPolicy";

/// Rules that a domain's policy adds.
const GROUP_RULES: &str = r"SOFTWARE\Policies\Microsoft\WindowsFirewall\FirewallRules";

/// The profiles' keys, and their names.
const PROFILES: [(&str, &str); 3] =
    [("DomainProfile", "domain"), ("StandardProfile", "private"), ("PublicProfile", "public")];

/// Looks at the firewall.
pub(super) fn survey() -> Seen<FirewallSurvey> {
    let policy = LOCAL_MACHINE.open(POLICY).map_err(|error| format!("opening HKLM\\{POLICY}: {error}"))?;
    let is_on = |key: &str| {
        let enabled = policy.open(key).and_then(|profile| profile.get_u32("EnableFirewall"));
        // Windows' own default.
        enabled != Ok(0)
    };
    let active = PROFILES.into_iter().filter(|(key, _)| is_on(key)).map(|(_, name)| name).collect();
    let mut rules = rules(&policy.open("FirewallRules").map_err(|error| format!("FirewallRules: {error}"))?)?;
    if let Ok(group) = LOCAL_MACHINE.open(GROUP_RULES) {
        rules.extend(self::rules(&group)?);
    }
    Ok(FirewallSurvey { active, rules })
}

fn rules(key: &Key) -> Seen<Vec<String>> {
    let values = key.values().map_err(|error| format!("listing firewall rules: {error}"))?;
    Ok(values.filter_map(|(_, value)| String::try_from(value).ok()).collect())
}

#[cfg(test)]
mod tests {
    use windows_registry::CURRENT_USER;

    use super::*;

    #[test]
    fn rules_are_the_texts_of_a_keys_values() {
        let path = r"Software\windlass-test-rules";
        let key = CURRENT_USER.create(path).unwrap();
        key.set_string("one", "v2.30|Action=Allow|").unwrap();
        key.set_u32("no text", 7).unwrap();
        key.set_string("two", "v2.30|Action=Block|").unwrap();
        let mut found = rules(&key).unwrap();
        found.sort();
        assert_eq!(found, ["v2.30|Action=Allow|", "v2.30|Action=Block|"]);
        CURRENT_USER.remove_tree(path).unwrap();
    }
}
