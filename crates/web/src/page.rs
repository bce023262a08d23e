//! The page: HTML, style and scripts in one text, with or without data.

use outlive_types::{Error, Result};
use serde_json::Value;

const HTML: &str = include_str!("page/page.html");
/// The style of all pages, light and dark.
pub const STYLE: &str = include_str!("page/page.css");
/// In the order in which they use each other.
const SCRIPTS: [&str; 6] = [
    include_str!("page/format.js"),
    include_str!("page/dom.js"),
    include_str!("page/chart.js"),
    include_str!("page/pool.js"),
    include_str!("page/job.js"),
    include_str!("page/main.js"),
];

/// The first bytes of every report, by which a program recognises one.
pub const REPORT_START: &str = "<!doctype html>\n<!-- outlive report -->\n";

/// Returns the page of a server, which asks it for data, and the policy for its header.
///
/// # Errors
/// `Bug` if the kernel gives no random bytes.
pub fn served() -> Result<(String, String)> {
    let nonce = nonce()?;
    let policy = format!("{}; frame-ancestors 'none'", policy(&nonce, "'self'"));
    Ok((filled("<!doctype html>\n", &nonce, &policy_meta(&nonce, "'self'"), "null"), policy))
}

/// Returns a page that holds its data, for a file. It fetches nothing.
///
/// # Errors
/// `Bug` if the kernel gives no random bytes.
pub fn report(data: &Value, space: &Value) -> Result<String> {
    let nonce = nonce()?;
    let data = in_script(&serde_json::json!({ "data": data, "space": space }));
    Ok(filled(REPORT_START, &nonce, &policy_meta(&nonce, "'none'"), &data))
}

/// Returns JSON that may stand inside a `<script>` element.
pub fn in_script(value: &Value) -> String {
    // Each of these characters stands only inside strings of JSON, where the escape means the same.
    // `<` begins an end tag or a comment, and the last two end a line in older scripts.
    let escapes = [
        ('<', "\\u003c"),
        ('>', "\\u003e"),
        ('&', "\\u0026"),
        ('\u{2028}', "\\u2028"),
        ('\u{2029}', "\\u2029"),
    ];
    let mut out = String::new();
    for c in value.to_string().chars() {
        match escapes.iter().find(|(from, _)| *from == c) {
            Some((_, escape)) => out.push_str(escape),
            None => out.push(c),
        }
    }
    out
}

fn filled(start: &str, nonce: &str, policy: &str, data: &str) -> String {
    // One pass, so that text that was put in is not searched for further places.
    let mut out = start.to_owned();
    let mut rest = HTML;
    while let Some((before, (name, after))) =
        rest.split_once("{{").and_then(|(before, rest)| Some((before, rest.split_once("}}")?)))
    {
        out.push_str(before);
        match name {
            "nonce" => out.push_str(nonce),
            "policy" => out.push_str(policy),
            "style" => out.push_str(STYLE),
            "scripts" => SCRIPTS.iter().for_each(|script| out.push_str(script)),
            "data" => out.push_str(data),
            _ => unreachable!("page.html has an unknown place {name}"),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Only the style and the scripts of this page count, whatever its data contains.
fn policy(nonce: &str, connect: &str) -> String {
    format!(
        "default-src 'none'; style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; img-src data:; connect-src {connect}; \
         base-uri 'none'; form-action 'none'"
    )
}

fn policy_meta(nonce: &str, connect: &str) -> String {
    format!("<meta http-equiv=\"Content-Security-Policy\" content=\"{}\">", policy(nonce, connect))
}

fn nonce() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::bug(format!("the kernel gives no random bytes: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
