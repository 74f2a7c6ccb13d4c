//! Decides who may connect: the one gate. Nothing else can make an [`Admitted`], and nothing connects without one.

use std::sync::Arc;

use crate::model::{Fingerprint, Refusal, ServerName, ServerSpec};

/// The permission to connect to one server by one specification.
#[derive(Debug, Clone)]
pub struct Admitted {
    name: ServerName,
    spec: Arc<ServerSpec>,
    fingerprint: Fingerprint,
}

impl Admitted {
    pub fn name(&self) -> &ServerName {
        &self.name
    }

    pub fn spec(&self) -> &Arc<ServerSpec> {
        &self.spec
    }

    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

/// What the gate says of a server.
#[derive(Debug, Clone)]
pub enum Admission {
    Admitted(Admitted),
    /// What could forbid it cannot be read now, and what was read last admitted it: nothing opens, what runs stays.
    Held(Refusal),
    Refused(Refusal),
}

#[cfg(test)]
pub(crate) fn admitted_for_test(name: &str, spec: ServerSpec) -> Admitted {
    let fingerprint = Fingerprint::of(&spec.transport);
    Admitted { name: name.into(), spec: Arc::new(spec), fingerprint }
}
