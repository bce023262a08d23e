//! `outlive completions` and `outlive man`, and their installation.

use crate::common;

use common::{files, json, outlive};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const COMMANDS: [&str; 6] = ["ls", "put", "pool", "prune", "completions", "man"];

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn names(dir: &Path) -> Vec<String> {
    let name = |(path, _): &(std::path::PathBuf, _)| {
        path.strip_prefix(dir).unwrap().to_str().unwrap().to_owned()
    };
    files(dir).iter().map(name).collect()
}

#[test]
fn each_shell_gets_a_script_with_all_commands() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let run = outlive(&["completions", shell]);
        assert!(run.code == 0 && run.err.is_empty(), "{shell}: {}", run.err);
        for command in COMMANDS {
            assert!(run.out.contains(command), "{shell}: {command}");
        }
        let told = json(&["completions", shell, "--json"]);
        assert_eq!((&told["shell"], &told["script"]), (&shell.into(), &run.out.into()));
    }
    let run = outlive(&["completions", "tcsh"]);
    assert!(run.code == 2 && run.err.contains("zsh"), "{run:?}");
    assert_eq!(outlive(&["completions"]).code, 2);
}

/// bash runs the script, and completes.
#[test]
fn bash_completes_with_the_script() {
    let dir = tempfile::tempdir().unwrap();
    let script = dir.path().join("outlive.bash");
    fs::write(&script, outlive(&["completions", "bash"]).out).unwrap();
    let asked = format!(
        ". '{}'; COMP_WORDS=(outlive pr); COMP_CWORD=1; _outlive outlive pr outlive; \
         echo \"${{COMPREPLY[@]}}\"",
        script.display()
    );
    let done = Command::new("bash").args(["--norc", "-c", &asked]).output().unwrap();
    assert_eq!(String::from_utf8(done.stdout).unwrap(), "prune\n");
}

#[test]
fn a_page_is_written_for_each_command_and_again() {
    let dir = tempfile::tempdir().unwrap();
    let to = dir.path().join("new/man1");
    let told = json(&["man", "--to", text(&to), "--json"]);
    let first = files(&to);
    assert_eq!(told["pages"].as_array().unwrap().len(), first.len());
    let listed = names(&to);
    for page in ["outlive.1", "outlive-put.1", "outlive-pool.1", "outlive-pool-init.1"] {
        assert!(listed.iter().any(|name| name == page), "{page}: {listed:?}");
    }
    assert!(!listed.iter().any(|name| name == "outlive-helper.1"), "it is hidden");
    let prune = fs::read_to_string(to.join("outlive-prune.1")).unwrap();
    for part in [".TH outlive-prune 1", "\\-\\-keep\\-last", "Number of newest whole checkpoints"] {
        assert!(prune.contains(part), "{part}: {prune}");
    }
    let main = fs::read_to_string(to.join("outlive.1")).unwrap();
    assert!(main.contains("Exit codes"), "{main}");
    // A page that another version has left is replaced, and a file of another name is not touched.
    fs::write(to.join("outlive-prune.1"), "old").unwrap();
    fs::write(to.join("other.1"), "mine").unwrap();
    let run = outlive(&["man", "--to", text(&to)]);
    assert!(run.code == 0 && run.out.contains("manual pages to"), "{run:?}");
    assert_eq!(fs::read(to.join("other.1")).unwrap(), b"mine");
    fs::remove_file(to.join("other.1")).unwrap();
    assert_eq!(files(&to), first);
}

#[test]
fn pages_are_refused_where_they_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    let pool = common::pool_with_job(dir.path());
    let file = dir.path().join("file");
    fs::write(&file, "mine").unwrap();
    for to in [pool.join("packs"), file.clone(), "/proc/nowhere".into()] {
        let before = files(&pool);
        let run = outlive(&["man", "--to", text(&to)]);
        assert!(run.code == 2 && run.err.contains(text(&to)), "{run:?}");
        assert_eq!(files(&pool), before);
    }
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    assert_eq!(outlive(&["man"]).code, 2);
}

#[test]
fn make_install_puts_them_where_shells_and_man_search() {
    let dir = tempfile::tempdir().unwrap();
    let built = dir.path().join("built");
    fs::create_dir(&built).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/install");
    let install = || {
        let mut command = Command::new(&script);
        command.arg("/usr").env("OUTLIVE_INSTALL_FROM", &built);
        command.env("DESTDIR", dir.path().join("root")).output().unwrap()
    };
    let done = install();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(!done.status.success() && said.contains("there are no static libraries"), "{said}");
    symlink(env!("CARGO_BIN_EXE_outlive"), built.join("outlive")).unwrap();
    for _ in 0..2 {
        let done = install();
        assert!(done.status.success(), "{done:?}");
    }
    let usr = dir.path().join("root/usr");
    for (shell, place) in [
        ("bash", "share/bash-completion/completions/outlive"),
        ("zsh", "share/zsh/site-functions/_outlive"),
        ("fish", "share/fish/vendor_completions.d/outlive.fish"),
    ] {
        let script = fs::read_to_string(usr.join(place)).unwrap();
        assert_eq!(script, outlive(&["completions", shell]).out, "{place}");
    }
    let pages = usr.join("share/man/man1");
    assert!(pages.join("outlive-prune.1").is_file() && usr.join("bin/outlive").is_file());
    assert!(names(&usr).iter().all(|name| !name.ends_with(".new")), "{:?}", names(&usr));
}
