//! One rule of Windows' firewall, as its service writes it: fields between bars (MS-FASP 2.2.19).

/// As far as it says whether VXLAN comes in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule<'a> {
    /// Its name as people see it.
    pub(super) name: &'a str,
    /// Whether it drops what it matches.
    pub(super) blocks: bool,
    is_on: bool,
    is_inbound: bool,
    /// Whether it is about UDP, or about every protocol.
    has_udp: bool,
    /// First and last of its local ports; empty for all.
    ports: Vec<(u16, u16)>,
    /// The program it is for; `None` for all.
    program: Option<&'a str>,
    /// Whether it is about some peers, services or packages only.
    is_narrow: bool,
}

/// IANA's number of UDP.
const UDP: &str = "17";

impl<'a> Rule<'a> {
    /// What is not known is passed over: a rule is read as it was written, by whichever version of Windows.
    pub(super) fn parse(text: &'a str) -> Self {
        let mut rule = Self { has_udp: true, ..Self::default() };
        for (key, value) in text.split('|').filter_map(|field| field.split_once('=')) {
            match key {
                "Action" => rule.blocks = value == "Block",
                "Active" => rule.is_on = value == "TRUE",
                "Dir" => rule.is_inbound = value == "In",
                "Protocol" => rule.has_udp = value == UDP,
                "LPort" | "LPort2_10" => rule.ports.push(range(value)),
                "App" => rule.program = Some(value),
                "Name" => rule.name = value,
                "RA4" | "RA42" | "RA6" | "RA62" | "RPort" | "Svc" | "AppPkgId" | "IFType" | "IF"
                | "Security" | "RUAuth" | "LUAuth" => rule.is_narrow = true,
                _ => {}
            }
        }
        rule
    }

    /// Whether it decides about what any peer sends to that UDP port of this program. A narrower rule may; that is not
    /// counted on.
    pub(super) fn lets_vxlan_in_or_blocks_it(&self, port: u16) -> bool {
        let has_port =
            self.ports.is_empty() || self.ports.iter().any(|(first, last)| (*first..=*last).contains(&port));
        let is_ours = self.program.is_none_or(|program| {
            let file = program.rsplit(['\\', '/']).next().unwrap_or_default();
            file.eq_ignore_ascii_case("windlass.exe")
        });
        self.is_on && self.is_inbound && self.has_udp && has_port && is_ours && !self.is_narrow
    }
}

/// `4789` or `4780-4799`. What is neither, such as `RPC-EPMap`, holds no port.
fn range(text: &str) -> (u16, u16) {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    first.parse().ok().zip(last.parse().ok()).unwrap_or((1, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = r"v2.30|Action=Allow|Active=TRUE|Dir=In|Protocol=17|LPort=4789|App=C:\Program Files\Windlass\windlass.exe|Name=windlass-vxlan|";

    #[test]
    fn a_rule_decides_where_every_field_of_it_fits() {
        let cases = [
            ("ours", OURS.to_owned(), true),
            ("of any program", OURS.replace(r"App=C:\Program Files\Windlass\windlass.exe|", ""), true),
            ("of another program", OURS.replace("windlass.exe", "other.exe"), false),
            ("a range", OURS.replace("LPort=4789", "LPort2_10=4780-4799"), true),
            ("of any port", OURS.replace("LPort=4789|", ""), true),
            ("two ports", OURS.replace("LPort=4789", "LPort=53|LPort=4789"), true),
            ("another port", OURS.replace("4789", "8472"), false),
            ("a port with a name", OURS.replace("4789", "Teredo"), false),
            ("TCP", OURS.replace("Protocol=17", "Protocol=6"), false),
            ("any protocol", OURS.replace("Protocol=17|", ""), true),
            ("off", OURS.replace("Active=TRUE", "Active=FALSE"), false),
            ("outbound", OURS.replace("Dir=In", "Dir=Out"), false),
            ("for some peers", OURS.replace("|App", "|RA4=192.0.2.0/255.255.255.0|App"), false),
            ("nonsense", "||=|".to_owned(), false),
        ];
        for (what, text, expected) in cases {
            assert_eq!(Rule::parse(&text).lets_vxlan_in_or_blocks_it(4789), expected, "{what}");
        }
        assert!(Rule::parse(&OURS.replace("Allow", "Block")).blocks && !Rule::parse(OURS).blocks);
    }
}
