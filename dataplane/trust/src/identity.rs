//! Who somebody is: a role, and a name in it.

use core::fmt;
use core::str::FromStr;

use rowmill_link::is_name;

/// What somebody may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Report, send samples and ask for the policy of its own name.
    Dataplane,
    /// Look at everything, and change settings.
    Operator,
}

impl Role {
    fn word(self) -> &'static str {
        match self {
            Role::Dataplane => "dataplane",
            Role::Operator => "operator",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

/// Somebody.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// See there.
    pub role: Role,
    /// A dataplane's, as its configuration says, or a person's or program's, of the same characters.
    pub name: String,
}

/// It names nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` names nobody: write dataplane or operator and a name of at most {max} letters, digits, `.`, `_` and `-`",
    max = rowmill_link::NAME_MAX
)]
pub struct NoIdentity(pub String);

const SCHEME: &str = "rowmill://";

impl Identity {
    /// One of a role, by its word, and a name.
    ///
    /// # Errors
    /// [`NoIdentity`].
    pub fn of(word: &str, name: &str) -> Result<Identity, NoIdentity> {
        let roles = [Role::Dataplane, Role::Operator];
        let role = roles.into_iter().find(|known| known.word() == word);
        match role.filter(|_| is_name(name)) {
            Some(role) => Ok(Identity {
                role,
                name: name.into(),
            }),
            None => Err(NoIdentity(format!("{word} {name}"))),
        }
    }

    /// As certificates have it: `rowmill://ROLE/NAME`, a URI among the subject's alternative names.
    pub fn uri(&self) -> String {
        format!("{SCHEME}{}/{}", self.role, self.name)
    }

    /// Whether a URI is meant to name somebody here.
    pub(crate) fn is_meant(uri: &str) -> bool {
        uri.starts_with(SCHEME)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.role, self.name)
    }
}

/// From a URI.
impl FromStr for Identity {
    type Err = NoIdentity;

    fn from_str(uri: &str) -> Result<Identity, NoIdentity> {
        let parts = uri.strip_prefix(SCHEME).and_then(|uri| uri.split_once('/'));
        let identity = parts.and_then(|(role, name)| Identity::of(role, name).ok());
        identity.ok_or_else(|| NoIdentity(uri.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_are_read_as_they_are_written() {
        for identity in ["rowmill://dataplane/dpu-7", "rowmill://operator/a.b_c"] {
            assert_eq!(identity.parse::<Identity>().unwrap().uri(), identity);
        }
        for wrong in [
            "",
            "rowmill://",
            "rowmill://dataplane",
            "rowmill://dataplane/",
            "rowmill://dataplane/a/b",
            "rowmill://dataplane/a?b",
            "rowmill://dataplane/..",
            "rowmill://Dataplane/a",
            "rowmill://root/a",
            "spiffe://dataplane/a",
            "ROWMILL://dataplane/a",
        ] {
            let error = wrong.parse::<Identity>().unwrap_err().to_string();
            assert!(error.contains("names nobody"), "{error}");
        }
    }
}
