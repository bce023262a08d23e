//! Access to a cluster: user, password and certificates, from the variables that etcdctl reads, and
//! the life of leases.

use outlive_types::{Error, Result};
use std::fs;
use std::path::Path;

/// Looks up an environment variable.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Access to a cluster.
pub(crate) struct Settings {
    pub user: Option<User>,
    /// None without TLS.
    pub tls: Option<Tls>,
    /// Seconds after which a lease ends that is not renewed.
    pub lease_s: u32,
}

/// Variable with the life of a lease in seconds: a program may be paused, or cut off, for that
/// time.
const LEASE: &str = "OUTLIVE_LEASE_S";
const LEASE_S: u32 = 300;
/// The longest life: a day.
const LEASE_S_MAX: u32 = 86_400;

/// The user in whose name we make requests.
pub(crate) struct User {
    pub name: String,
    pub password: String,
}

/// Certificates, as in PEM files.
pub(crate) struct Tls {
    /// Certificates that sign the members'; those of the system if there are none.
    pub roots: Option<Vec<u8>>,
    /// Our own certificate and its key, for a cluster that requires one.
    pub identity: Option<Vec<u8>>,
}

impl Settings {
    /// Finds the settings; those of TLS only if needed.
    ///
    /// # Errors
    /// `Invalid` if one of two variables that belong together is missing, or if a file cannot be
    /// read.
    pub(crate) fn find(variables: Variables, is_tls: bool) -> Result<Settings> {
        let tls = if is_tls { Some(tls(variables)?) } else { None };
        Ok(Settings { user: user(variables)?, tls, lease_s: lease_s(variables)? })
    }
}

/// Returns a variable; an empty one counts as not set.
fn variable(variables: Variables, name: &str) -> Option<String> {
    variables(name).filter(|value| !value.is_empty())
}

fn lease_s(variables: Variables) -> Result<u32> {
    let Some(value) = variable(variables, LEASE) else { return Ok(LEASE_S) };
    let seconds = value.parse().ok().filter(|seconds| (1..=LEASE_S_MAX).contains(seconds));
    seconds.ok_or_else(|| {
        Error::invalid(format!("{LEASE} is {value:?}: set it to seconds, from 1 to {LEASE_S_MAX}"))
    })
}

fn user(variables: Variables) -> Result<Option<User>> {
    let password = variable(variables, "ETCDCTL_PASSWORD");
    let Some(user) = variable(variables, "ETCDCTL_USER") else {
        return match password {
            Some(_) => Err(Error::invalid(
                "ETCDCTL_PASSWORD is set and ETCDCTL_USER is not: set both, or neither",
            )),
            None => Ok(None),
        };
    };
    // As in etcdctl: with a separate password, the name may have colons.
    let parts = match (password, user.split_once(':')) {
        (Some(password), _) => Some((user, password)),
        (None, Some((name, password))) => Some((name.to_owned(), password.to_owned())),
        (None, None) => None,
    };
    match parts {
        Some((name, password)) if !name.is_empty() => Ok(Some(User { name, password })),
        _ => Err(Error::invalid(
            "ETCDCTL_USER has no password: set it to \"NAME:PASSWORD\", or set ETCDCTL_PASSWORD as well",
        )),
    }
}

fn tls(variables: Variables) -> Result<Tls> {
    let file = |name: &str| {
        let Some(path) = variable(variables, name) else { return Ok(None) };
        let read = fs::read(&path);
        let named = format!("reading {name}");
        read.map(Some).map_err(|error| Error::io_named(&named, Path::new(&path), &error))
    };
    let roots = file("ETCDCTL_CACERT")?;
    let identity = match (file("ETCDCTL_CERT")?, file("ETCDCTL_KEY")?) {
        (Some(cert), Some(key)) => Some([cert, vec![b'\n'], key].concat()),
        (None, None) => None,
        _ => {
            return Err(Error::invalid(
                "only one of ETCDCTL_CERT and ETCDCTL_KEY is set: set both, or neither",
            ));
        }
    };
    Ok(Tls { roots, identity })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)], is_tls: bool) -> Result<Settings> {
        let look = |name: &str| {
            let given = variables.iter().find(|(given, _)| *given == name);
            given.map(|(_, value)| (*value).to_owned())
        };
        Settings::find(&look, is_tls)
    }

    #[test]
    fn a_user_comes_with_a_password() {
        for (variables, wanted) in [
            (&[][..], None),
            (&[("ETCDCTL_USER", "")], None),
            (&[("ETCDCTL_USER", "me:a:b")], Some(("me", "a:b"))),
            (&[("ETCDCTL_USER", "me"), ("ETCDCTL_PASSWORD", "x")], Some(("me", "x"))),
            (&[("ETCDCTL_USER", "me:x"), ("ETCDCTL_PASSWORD", "y")], Some(("me:x", "y"))),
        ] {
            let user = found(variables, false).unwrap().user;
            let user = user.as_ref().map(|user| (user.name.as_str(), user.password.as_str()));
            assert_eq!(user, wanted);
        }
        for variables in
            [&[("ETCDCTL_USER", "me")][..], &[("ETCDCTL_USER", ":x")], &[("ETCDCTL_PASSWORD", "x")]]
        {
            assert!(found(variables, false).is_err());
        }
    }

    #[test]
    fn leases_live_as_long_as_is_said() {
        for (given, wanted) in [("", 300), ("1", 1), ("86400", 86_400)] {
            assert_eq!(found(&[(LEASE, given)], false).unwrap().lease_s, wanted);
        }
        for given in ["0", "-1", "1.5", "86401", "5m", "99999999999"] {
            assert!(found(&[(LEASE, given)], false).is_err(), "{given}");
        }
    }

    #[test]
    fn files_of_tls_are_read_if_it_is_wanted() {
        let missing = [("ETCDCTL_CACERT", "/no/such/file")];
        assert!(found(&missing, false).is_ok());
        let error = found(&missing, true).err().unwrap();
        assert!(error.message().contains("ETCDCTL_CACERT /no/such/file"), "{error}");
        assert!(found(&[("ETCDCTL_KEY", "/dev/null")], true).is_err());
    }
}
