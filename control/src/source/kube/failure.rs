//! What an answer of the API server that is no answer means, and what to do about it.

use std::error::Error as _;
use std::fmt;
use std::time::Duration;

use super::kind::Kind;

/// Why a request did not give what it asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    cause: Cause,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// The version asked for is too old: only a new list helps (410).
    Gone,
    /// We may not ask for this, or there is no such thing (403, 404).
    Withheld,
    /// Anything that may pass.
    Passing,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Failure {}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request<'a> {
    /// The server's address.
    pub(super) server: &'a str,
    /// `list and watch`, or another verb.
    pub(super) verb: &'a str,
    /// Of which kind.
    pub(super) kind: Kind,
}

impl Failure {
    /// What `error` means for that request.
    pub(super) fn of(error: &kube::Error, request: Request<'_>) -> Self {
        match error {
            kube::Error::Api(status) => Self::of_status(status.code, &status.message, request),
            kube::Error::SerdeError(reason) => Self::passing(format!(
                "{}: the answer about {} is none that Kubernetes gives ({reason}); is this the API server?",
                request.server, request.kind
            )),
            other => Self::unreachable(other, request.server),
        }
    }

    /// What a status means that the server sent, as its answer or within a watch.
    pub(super) fn of_status(code: u16, message: &str, request: Request<'_>) -> Self {
        let Request { server, verb, kind } = request;
        let (cause, text) = match code {
            401 => (
                Cause::Passing,
                format!(
                    "{server} does not know our credentials (401 {message}); the token or certificate is wrong or has expired: write a new kubeconfig"
                ),
            ),
            403 => (
                Cause::Withheld,
                format!("{server} forbids to {verb} {kind} (403 {message}); {}", kind.rule(verb)),
            ),
            404 => (
                Cause::Withheld,
                format!(
                    "{server} has no {kind} to {verb} (404 {message}); {}",
                    if kind.is_needed() { "is this the API server's address?" } else { kind.substitute() }
                ),
            ),
            410 => (Cause::Gone, format!("{server} no longer knows the version of {kind} that we had (410)")),
            _ => (Cause::Passing, format!("{server} cannot {verb} {kind} ({code} {message})")),
        };
        Self { cause, text }
    }

    /// That there was no answer in time.
    pub(super) fn silent(limit: Duration, request: Request<'_>) -> Self {
        let Request { server, verb, kind } = request;
        Self::passing(format!("{server} has not answered for {} s to {verb} {kind}", limit.as_secs()))
    }

    /// That watches end as soon as they begin.
    pub(super) fn closes_at_once(request: Request<'_>) -> Self {
        let text = "ends watches at once; is there a proxy between that allows no long answers?";
        Self::passing(format!("{} {text}", request.server))
    }

    fn unreachable(error: &kube::Error, server: &str) -> Self {
        let cause = causes(error);
        let remedy = if cause.contains("certificate") {
            "the certificate authority is not this server's, its certificate is not for this address, or this host's clock is wrong"
        } else {
            "is the address right and the server up? In a pod, KUBERNETES_SERVICE_HOST must be the API server's own address: the `kubernetes` service works only once this node forwards"
        };
        Self::passing(format!("{server} cannot be reached: {cause}; {remedy}"))
    }

    fn passing(text: String) -> Self {
        Self { cause: Cause::Passing, text }
    }

    /// Whether only a new list helps.
    pub(super) fn is_gone(&self) -> bool {
        self.cause == Cause::Gone
    }

    /// Whether the kind is kept from us, or is not there.
    pub(super) fn is_withheld(&self) -> bool {
        self.cause == Cause::Withheld
    }
}

/// The innermost texts of an error: those around them say only that there was one.
fn causes(error: &kube::Error) -> String {
    let mut texts = Vec::new();
    let mut cause = error.source();
    while let Some(inner) = cause {
        texts.push(inner.to_string());
        cause = inner.source();
    }
    texts.dedup();
    match texts.as_slice() {
        [] => error.to_string(),
        [.., before, last] if !before.contains(last.as_str()) => format!("{before}: {last}"),
        [.., last] => last.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(code: u16, kind: Kind) -> Failure {
        Failure::of_status(code, "said so", Request { server: "https://api", verb: "list and watch", kind })
    }

    #[test]
    fn failures_name_the_kind_and_the_remedy() {
        for (code, kind, words) in [
            (401, Kind::Node, &["credentials", "expired", "kubeconfig"][..]),
            (403, Kind::EndpointSlice, &["EndpointSlices", "discovery.k8s.io", "endpointslices", "watch"]),
            (404, Kind::ServiceCidr, &["ServiceCIDRs", "--service-cidr"]),
            (404, Kind::Service, &["Services", "API server's address"]),
            (500, Kind::Node, &["Nodes", "500 said so"]),
        ] {
            let text = told(code, kind).to_string();
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        assert!(told(410, Kind::Node).is_gone() && told(403, Kind::Node).is_withheld());
    }
}
