//! The programs in the documents compile without a warning, and run.

use crate::common;

use common::{Language, compile, fortran_module, text};
use std::fs;
use std::path::Path;

/// Output of each block of code, found by its first part. Each runs after the ones before it, in
/// one folder.
const PROGRAMS: [(Language, &str, &[&str]); 7] = [
    (Language::C, "static double u[500][400];", &["step 1000\n", "step 1000\n"]),
    (Language::C, "#include <signal.h>", &["step 100\n"]),
    (Language::C, "const double result[3]", &["epoch 1: 24 bytes\n", "epoch 2: 24 bytes\n"]),
    (Language::C, "outlive_events_next", &["safe up to epoch 3\n", "safe up to epoch 6\n"]),
    (Language::C, "outlive_checkpoint_find", &["u: <f8, 500 x 400\n"]),
    (Language::Cpp, "#include <outlive.hpp>", &["step 100\n", "restored\nstep 100\n"]),
    (Language::Fortran, "program small", &["step 100\n", "step 100\n"]),
];

/// Blocks of a document in one language.
fn blocks(document: &str, fence: &str) -> Vec<String> {
    let text = text(document);
    let mut found = Vec::new();
    for part in text.split(&format!("\n```{fence}\n")).skip(1) {
        found.push(part.split("\n```").next().unwrap().to_owned() + "\n");
    }
    found
}

fn suffix(language: Language) -> &'static str {
    match language {
        Language::C => "c",
        Language::Cpp => "cpp",
        Language::Fortran => "f90",
    }
}

fn fence(language: Language) -> &'static str {
    match language {
        Language::C => "c",
        Language::Cpp => "cpp",
        Language::Fortran => "fortran",
    }
}

fn program(language: Language, dir: &Path, name: &str, code: &str) -> std::path::PathBuf {
    let source = dir.join(format!("{name}.{}", suffix(language)));
    fs::write(&source, code).unwrap();
    let module = fortran_module();
    let sources = if language == Language::Fortran { vec![module, source] } else { vec![source] };
    compile(language, dir, &sources, &[])
}

#[test]
fn every_program_is_known() {
    let known = |language| PROGRAMS.iter().filter(|(of, ..)| *of == language).count();
    for language in [Language::C, Language::Cpp, Language::Fortran] {
        assert_eq!(blocks("docs/c.md", fence(language)).len(), known(language), "{language:?}");
    }
    assert_eq!(blocks("README.md", "c").len(), 1);
}

#[test]
fn the_programs_run() {
    let dir = tempfile::tempdir().unwrap();
    for (number, (language, part, prints)) in PROGRAMS.into_iter().enumerate() {
        if !language.is_here() {
            continue;
        }
        let blocks = blocks("docs/c.md", fence(language));
        let code = blocks.iter().find(|block| block.contains(part)).unwrap();
        let program = program(language, dir.path(), &format!("program{number}"), code);
        for told in prints {
            let done =
                std::process::Command::new(&program).current_dir(dir.path()).output().unwrap();
            let found = common::text_of(&done);
            assert_eq!(found, *told, "{part}");
        }
    }
}

#[test]
fn the_loop_of_the_readme() {
    if !Language::C.is_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let block = blocks("README.md", "c").remove(0);
    let (includes, body): (Vec<&str>, Vec<&str>) =
        block.lines().partition(|line| line.starts_with("#include"));
    let given = "#include <stdio.h>\n\
        static double u[300][200];\nstatic const size_t shape[] = {300, 200};\nstatic int64_t step;\n\
        static void advance(void) { u[step % 300][step % 200] += 1; step += 1000; }\n";
    let code = format!(
        "{}\n{given}int main(void) {{\noutlive_pool *pool;\noutlive_job *job;\n{}\n\
         outlive_checkpoint *c;\noutlive_region_info i;\n\
         if (outlive_job_open(pool, \"heat\", 0, &job) || outlive_checkpoint_open(job, 0, &c)) return 1;\n\
         if (outlive_checkpoint_find(c, \"u\", &i) || i.ndim != 2) return 2;\n\
         printf(\"step %d\\n\", (int)step);\nreturn 0;\n}}\n",
        includes.join("\n"),
        body.join("\n"),
    );
    let program = program(Language::C, dir.path(), "readme", &code);
    for _ in 0..2 {
        let done = std::process::Command::new(&program).current_dir(dir.path()).output().unwrap();
        assert_eq!(common::text_of(&done), "step 10000\n");
    }
}
