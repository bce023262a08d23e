//! Sources of settings, and the messages when some are missing.

use super::*;
use outlive_types::ErrorKind;
use std::fs;

/// Returns the settings of a program with these variables.
fn find(variables: &[(&str, &str)]) -> Result<Settings> {
    let value = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    Settings::find(&value)
}

fn keys(settings: &Settings) -> (&str, &str, Option<&str>) {
    match &settings.credentials {
        Credentials::Keys { id, secret, token } => (id, secret, token.as_deref()),
        Credentials::Role(_) => panic!("a role"),
    }
}

fn refused(variables: &[(&str, &str)]) -> String {
    let error = find(variables).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    error.to_string()
}

const KEYS: [(&str, &str); 2] = [("AWS_ACCESS_KEY_ID", "id"), ("AWS_SECRET_ACCESS_KEY", "secret")];

#[test]
fn variables_count_first() {
    let [id, secret] = KEYS;
    let settings = find(&[
        id,
        secret,
        ("AWS_SESSION_TOKEN", "token"),
        ("AWS_ENDPOINT_URL", "http://other:1"),
        ("AWS_ENDPOINT_URL_S3", "http://host:9000/"),
    ])
    .unwrap();
    assert_eq!(keys(&settings), ("id", "secret", Some("token")));
    assert_eq!(settings.endpoint.as_deref(), Some("http://host:9000"));
    assert!(settings.is_plain() && settings.region == "us-east-1");
    let settings = find(&[id, secret, ("AWS_DEFAULT_REGION", "eu-west-1")]).unwrap();
    assert_eq!((settings.endpoint.as_deref(), settings.region.as_str()), (None, "eu-west-1"));
    assert!(!settings.is_plain());
    assert!(!format!("{settings:?}").contains("secret"));
}

#[test]
fn files_are_read_where_variables_are_silent() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join(".aws")).unwrap();
    let (credentials, config) =
        (dir.path().join(".aws/credentials"), dir.path().join(".aws/config"));
    fs::write(
        &credentials,
        "[default]\naws_access_key_id = a\naws_secret_access_key = b\n[lab]\n\
         aws_access_key_id = c\naws_secret_access_key = d\naws_session_token = e\n",
    )
    .unwrap();
    fs::write(
        &config,
        "[default]\nregion = r1\n[profile lab]\nregion = r2\nservices = of-lab\nendpoint_url = \
         http://all\n[services of-lab]\ns3 =\n  endpoint_url = https://s3.lab\n[profile sso]\n\
         sso_session = x\nregion = r3\n",
    )
    .unwrap();
    let home = ("HOME", dir.path().to_str().unwrap());
    let settings = find(&[home]).unwrap();
    assert_eq!((keys(&settings), settings.region.as_str()), (("a", "b", None), "r1"));
    let settings = find(&[home, ("AWS_PROFILE", "lab")]).unwrap();
    assert_eq!((keys(&settings), settings.region.as_str()), (("c", "d", Some("e")), "r2"));
    assert_eq!(settings.endpoint.as_deref(), Some("https://s3.lab"));
    let told = refused(&[home, ("AWS_PROFILE", "sso")]);
    assert!(told.contains("sso_session") && told.contains("export-credentials"), "{told}");
    let told = refused(&[home, ("AWS_PROFILE", "nobody")]);
    assert!(told.contains("\"nobody\"") && told.contains(".aws/config"), "{told}");
    // The same files in other locations.
    let settings = find(&[
        ("AWS_SHARED_CREDENTIALS_FILE", credentials.to_str().unwrap()),
        ("AWS_CONFIG_FILE", config.to_str().unwrap()),
        KEYS[0],
        KEYS[1],
    ])
    .unwrap();
    assert_eq!((keys(&settings), settings.region.as_str()), (("id", "secret", None), "r1"));
    fs::write(&credentials, "[default]\naws_access_key_id = a\n").unwrap();
    assert!(refused(&[home]).contains("only one of"));
    fs::write(&credentials, "aws_secret_access_key").unwrap();
    let told = refused(&[home]);
    assert!(told.contains(".aws/credentials") && told.contains("line 1"), "{told}");
}

#[test]
fn missing_settings_are_named_with_their_sources() {
    let [id, secret] = KEYS;
    let endpoint = ("AWS_ENDPOINT_URL", "http://127.0.0.1:9");
    let told = refused(&[endpoint, ("HOME", "/home/nobody")]);
    for place in ["AWS_ACCESS_KEY_ID", "AWS_PROFILE", "/home/nobody/.aws/credentials"] {
        assert!(told.contains(place), "{told}");
    }
    let told = refused(&[id, secret]);
    for place in ["AWS_ENDPOINT_URL", "AWS_REGION", ".aws/config"] {
        assert!(told.contains(place), "{told}");
    }
    assert!(refused(&[endpoint, id]).contains("AWS_SECRET_ACCESS_KEY is not"));
    assert!(refused(&[endpoint, secret]).contains("AWS_ACCESS_KEY_ID is not"));
    for url in ["host:9000", "http://", "https:///bucket", "ftp://host"] {
        let told = refused(&[id, secret, ("AWS_ENDPOINT_URL", url)]);
        assert!(told.contains(url) && told.contains("not a URL"), "{told}");
    }
}

#[test]
fn a_role_is_taken_where_there_are_no_keys() {
    let role =
        [("AWS_REGION", "r"), ("AWS_WEB_IDENTITY_TOKEN_FILE", "/token"), ("AWS_ROLE_ARN", "arn:x")];
    let Credentials::Role(role) = find(&role).unwrap().credentials else { panic!("keys") };
    assert_eq!(role.len(), 2);
    let half = [("AWS_REGION", "r"), ("AWS_ROLE_ARN", "arn:x")];
    assert!(refused(&half).contains("no credentials"));
}

#[test]
fn bodies_are_signed_where_nothing_else_keeps_them_as_they_are() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config");
    let signs = |url: &str, text: &str| {
        fs::write(&config, text).unwrap();
        let file = ("AWS_CONFIG_FILE", config.to_str().unwrap());
        find(&[KEYS[0], KEYS[1], ("AWS_ENDPOINT_URL", url), file]).map(|found| found.signs_bodies)
    };
    let set = |word: &str| format!("[default]\ns3 =\n  payload_signing_enabled = {word}\n");
    assert!(signs("http://host", "").unwrap() && !signs("https://host", "").unwrap());
    for url in ["http://host", "https://host"] {
        assert!(signs(url, &set("true")).unwrap() && !signs(url, &set("False")).unwrap());
    }
    let told = signs("http://host", &set("perhaps")).unwrap_err();
    assert!(told.kind() == ErrorKind::Invalid && told.message().contains("\"perhaps\""), "{told}");
    let aws = find(&[KEYS[0], KEYS[1], ("AWS_REGION", "r")]).unwrap();
    assert!(!aws.signs_bodies && !aws.is_plain());
}
