//! The page of a probe: proposals, targets and figures in one file without scripts.

use super::{Outcome, mb_per_s, rows_of, value_text};
use crate::output::shown;
use crate::plot::escaped;
use outlive_web::{REPORT_START, STYLE};
use std::fmt::Write as _;

/// Returns the page.
pub fn page(outcome: &Outcome, figures: &[String]) -> String {
    let pool = escaped(&shown(&outcome.pool));
    let mut out = format!(
        "{REPORT_START}<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src \
         'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>probe of {pool}</title>\n<style>\n{STYLE}svg .ground {{ fill: none; }}\n</style>\n\
         </head>\n<body>\n<header><h1>probe of <span>{pool}</span></h1></header>\n<main>\n"
    );
    out.push_str("<h2>Proposals</h2>\n");
    if outcome.proposals.is_empty() {
        out.push_str("<p>No fast target was measured, so there are no proposals.</p>\n");
    } else {
        let rows = outcome.proposals.iter().map(|proposal| {
            let proposed = match (proposal.is_change(), proposal.is_fixed) {
                (false, _) => "keep".to_owned(),
                (true, false) => value_text(&proposal.proposed),
                (true, true) => format!("{}, in a new pool", value_text(&proposal.proposed)),
            };
            vec![
                proposal.key.to_owned(),
                value_text(&proposal.present),
                proposed,
                proposal.reason.clone(),
            ]
        });
        table(&mut out, &["setting", ">now", ">proposed", "reason"], rows);
    }
    out.push_str("<h2>Targets</h2>\n");
    let (headings, rows) = rows_of(outcome);
    let headings: Vec<String> = headings.iter().map(|it| it.to_lowercase()).collect();
    let headings: Vec<&str> = headings.iter().map(String::as_str).collect();
    table(&mut out, &headings, rows.into_iter());
    out.push_str("<h2>Processor</h2>\n");
    let processor = &outcome.processor;
    let hash = ("fingerprints".to_owned(), processor.hash_bytes_per_s);
    let codecs = processor.codecs.iter();
    let codecs = codecs.map(|codec| (format!("{} of a sample", codec.codec), codec.bytes_per_s));
    let rows = std::iter::once(hash).chain(codecs);
    let rows = rows.map(|(name, speed)| vec![name, mb_per_s(speed)]);
    table(&mut out, &["work of one thread", ">throughput"], rows);
    out.push_str("<h2>Figures</h2>\n<div class=\"charts\">\n");
    for figure in figures {
        let _ = writeln!(out, "<div>{figure}</div>");
    }
    out.push_str("</div>\n</main>\n</body>\n</html>\n");
    out
}

fn table(out: &mut String, headings: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    let class = |heading: &str| if heading.starts_with('>') { " class=\"number\"" } else { "" };
    out.push_str("<div class=\"wide\"><table>\n<tr>");
    for heading in headings {
        let name = escaped(heading.trim_start_matches('>'));
        let _ = write!(out, "<th scope=\"col\"{}>{name}</th>", class(heading));
    }
    out.push_str("</tr>\n");
    for row in rows {
        out.push_str("<tr>");
        for (heading, cell) in headings.iter().zip(&row) {
            let _ = write!(out, "<td{}>{}</td>", class(heading), escaped(cell));
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</table></div>\n");
}
