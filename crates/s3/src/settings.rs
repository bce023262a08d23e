//! Access to a bucket: its endpoint, region and credentials, found where the AWS command line looks
//! for them.

use crate::profiles::Profiles;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey, Checksum};
use outlive_types::{Error, Result};
use std::fmt;
use std::path::{Path, PathBuf};

/// Looks up an environment variable.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Access to a bucket.
#[derive(Clone)]
pub(crate) struct Settings {
    /// The server, without the bucket; AWS itself if there is none.
    pub endpoint: Option<String>,
    region: String,
    credentials: Credentials,
    /// True if a request is signed together with its body. Otherwise the server accepts a body that
    /// was changed on its way.
    pub signs_bodies: bool,
}

#[derive(Clone)]
enum Credentials {
    Keys {
        id: String,
        secret: String,
        token: Option<String>,
    },
    /// A role; `object_store` requests and renews its keys.
    Role(Vec<(AmazonS3ConfigKey, String)>),
}

impl Settings {
    /// Finds the settings.
    ///
    /// # Errors
    /// `Invalid` if the region, the credentials or half of them are missing, if a value is not
    /// possible, or if a file cannot be read.
    pub(crate) fn find(variables: Variables) -> Result<Settings> {
        let files = Files::read(variables)?;
        let endpoint = endpoint(variables, &files)?;
        let region = variable(variables, "AWS_REGION")
            .or_else(|| variable(variables, "AWS_DEFAULT_REGION"))
            .or_else(|| files.get("region"));
        let region = match (region, &endpoint) {
            (Some(region), _) => region,
            // Servers other than AWS accept any region; this is the default of most of them.
            (None, Some(_)) => "us-east-1".to_owned(),
            (None, None) => {
                return Err(Error::invalid(format!(
                    "it is not known which server to ask: set AWS_ENDPOINT_URL for a server of your \
                     own, or AWS_REGION for AWS. Looked at AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, \
                     AWS_REGION, AWS_DEFAULT_REGION, and at {}",
                    files.described()
                )));
            }
        };
        let signs_bodies = signs_bodies(&files, is_plain(endpoint.as_deref()))?;
        Ok(Settings {
            endpoint,
            region,
            credentials: credentials(variables, &files)?,
            signs_bodies,
        })
    }

    /// Returns a client's builder with these settings.
    pub(crate) fn builder(&self) -> AmazonS3Builder {
        let mut builder = AmazonS3Builder::new()
            .with_region(&self.region)
            .with_unsigned_payload(!self.signs_bodies);
        if !self.signs_bodies && self.is_plain() {
            // The server compares it: otherwise it cannot see that a body arrived unchanged.
            builder = builder.with_checksum_algorithm(Checksum::CRC64NVME);
        }
        if let Some(endpoint) = &self.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        match &self.credentials {
            Credentials::Keys { id, secret, token } => {
                builder = builder.with_access_key_id(id).with_secret_access_key(secret);
                token.iter().fold(builder, |builder, token| builder.with_token(token))
            }
            Credentials::Role(settings) => settings
                .iter()
                .fold(builder, |builder, (key, value)| builder.with_config(*key, value)),
        }
    }

    /// Returns whether the connection is not encrypted.
    pub(crate) fn is_plain(&self) -> bool {
        is_plain(self.endpoint.as_deref())
    }

    /// Returns the server, for messages.
    pub(crate) fn server(&self) -> String {
        match &self.endpoint {
            Some(endpoint) => endpoint.clone(),
            None => format!("AWS in {}", self.region),
        }
    }
}

impl fmt::Debug for Settings {
    // Shows no keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settings({})", self.server())
    }
}

/// The two files, and the profile that is used.
struct Files {
    credentials: (PathBuf, Profiles),
    config: (PathBuf, Profiles),
    profile: String,
}

impl Files {
    fn read(variables: Variables) -> Result<Files> {
        let home = variable(variables, "HOME").unwrap_or_default();
        let file = |name, default| -> Result<(PathBuf, Profiles)> {
            let path =
                variable(variables, name).map_or(Path::new(&home).join(default), PathBuf::from);
            let profiles = Profiles::read(&path)?;
            Ok((path, profiles))
        };
        let asked = variable(variables, "AWS_PROFILE");
        let files = Files {
            credentials: file("AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials")?,
            config: file("AWS_CONFIG_FILE", ".aws/config")?,
            profile: asked.clone().unwrap_or_else(|| "default".to_owned()),
        };
        if asked.is_some() && !files.has_profile() {
            return Err(Error::invalid(format!(
                "AWS_PROFILE names {:?}, which {} do not have: correct it, or add that profile",
                files.profile,
                files.described()
            )));
        }
        Ok(files)
    }

    fn config_section(&self) -> String {
        match self.profile.as_str() {
            "default" => "default".to_owned(),
            name => format!("profile {name}"),
        }
    }

    fn has_profile(&self) -> bool {
        self.credentials.1.has(&self.profile) || self.config.1.has(&self.config_section())
    }

    /// Returns a value of the profile; the credentials file comes first.
    fn get(&self, key: &str) -> Option<String> {
        let credentials = self.credentials.1.get(&self.profile, key);
        let config = || self.config.1.get(&self.config_section(), key);
        credentials.or_else(config).map(str::to_owned)
    }

    /// Returns the endpoint of S3 in the profile's section of services.
    fn service_endpoint(&self) -> Option<String> {
        let services = format!("services {}", self.get("services")?);
        self.config.1.get(&services, "s3.endpoint_url").map(str::to_owned)
    }

    fn described(&self) -> String {
        format!(
            "{} and {} (profile {:?})",
            self.credentials.0.display(),
            self.config.0.display(),
            self.profile
        )
    }
}

/// Returns a variable that is not empty.
fn variable(variables: Variables, name: &str) -> Option<String> {
    variables(name).filter(|value| !value.is_empty())
}

fn endpoint(variables: Variables, files: &Files) -> Result<Option<String>> {
    let endpoint = variable(variables, "AWS_ENDPOINT_URL_S3")
        .or_else(|| variable(variables, "AWS_ENDPOINT_URL"))
        .or_else(|| files.service_endpoint())
        .or_else(|| files.get("endpoint_url"));
    let Some(endpoint) = endpoint else { return Ok(None) };
    let host = ["http://", "https://"].iter().find_map(|scheme| endpoint.strip_prefix(scheme));
    match host {
        Some(host) if !host.is_empty() && !host.starts_with(['/', ':']) => {
            Ok(Some(endpoint.trim_end_matches('/').to_owned()))
        }
        _ => Err(Error::invalid(format!(
            "the endpoint {endpoint:?} is not a URL: write it as \"https://HOST\" or \
             \"http://HOST:PORT\", in AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or endpoint_url"
        ))),
    }
}

fn is_plain(endpoint: Option<&str>) -> bool {
    endpoint.is_some_and(|endpoint| endpoint.starts_with("http://"))
}

/// As in the AWS command line: an encrypted connection protects bodies without signatures.
fn signs_bodies(files: &Files, is_plain: bool) -> Result<bool> {
    match files.get("s3.payload_signing_enabled").map(|word| word.to_ascii_lowercase()).as_deref() {
        None => Ok(is_plain),
        Some("true") => Ok(true),
        Some("false") => Ok(false),
        Some(word) => Err(Error::invalid(format!(
            "payload_signing_enabled is {word:?} in {}: it must be true or false",
            files.described()
        ))),
    }
}

fn credentials(variables: Variables, files: &Files) -> Result<Credentials> {
    let of_variables =
        [variable(variables, "AWS_ACCESS_KEY_ID"), variable(variables, "AWS_SECRET_ACCESS_KEY")];
    match of_variables {
        [Some(id), Some(secret)] => {
            return Ok(Credentials::Keys {
                id,
                secret,
                token: variable(variables, "AWS_SESSION_TOKEN"),
            });
        }
        [None, None] => {}
        [id, _] => {
            let (is, lacks) = match id {
                Some(_) => ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"),
                None => ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"),
            };
            return Err(Error::invalid(format!("{is} is set, but {lacks} is not: set both")));
        }
    }
    match [files.get("aws_access_key_id"), files.get("aws_secret_access_key")] {
        [Some(id), Some(secret)] => {
            Ok(Credentials::Keys { id, secret, token: files.get("aws_session_token") })
        }
        [None, None] => match role(variables) {
            Some(role) => Ok(Credentials::Role(role)),
            None => Err(no_credentials(files)),
        },
        _ => Err(Error::invalid(format!(
            "{} have only one of aws_access_key_id and aws_secret_access_key: add the other",
            files.described()
        ))),
    }
}

/// Returns the variables that give a role to programs in a cluster, if they are set.
fn role(variables: Variables) -> Option<Vec<(AmazonS3ConfigKey, String)>> {
    use AmazonS3ConfigKey as Key;
    let groups: [&[(&str, Key)]; 3] = [
        &[
            ("AWS_WEB_IDENTITY_TOKEN_FILE", Key::WebIdentityTokenFile),
            ("AWS_ROLE_ARN", Key::RoleArn),
        ],
        &[("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", Key::ContainerCredentialsRelativeUri)],
        &[
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", Key::ContainerCredentialsFullUri),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", Key::ContainerAuthorizationTokenFile),
        ],
    ];
    groups.iter().find_map(|group| {
        group.iter().map(|(name, key)| Some((*key, variable(variables, name)?))).collect()
    })
}

fn no_credentials(files: &Files) -> Error {
    let other = ["credential_process", "sso_session", "sso_start_url", "role_arn"]
        .into_iter()
        .find(|key| files.get(key).is_some());
    let what = match other {
        Some(key) => format!(
            "the profile {:?} has no keys but {key}, which outlive does not follow: run `eval \"$(aws \
             configure export-credentials --format env)\"` first",
            files.profile
        ),
        None => {
            "there are no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a \
                 profile that has them in AWS_PROFILE"
                .to_owned()
        }
    };
    Error::invalid(format!(
        "{what}. Looked at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, at the variables \
         of web identities and containers, and at {}",
        files.described()
    ))
}

#[cfg(test)]
mod tests;
