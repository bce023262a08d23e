//! Commands of restic, Borg and git, and former ones, that users type, with their names in outlive.

/// Returns a sentence with the equivalent of another program's command.
pub fn meant_by(word: &str) -> Option<String> {
    let meant = match word {
        "init" | "create-pool" => "`outlive pool init DIR`",
        "snapshots" | "log" | "list" | "archives" => "`outlive ls POOL JOB`",
        "restore" | "extract" | "checkout" => {
            "`outlive get POOL JOB --to DIR` for files, or `outlive export POOL JOB --to DIR` for arrays"
        }
        "dump" | "cat" => "`outlive get POOL JOB PATH --to -`",
        "check" | "fsck" => "`outlive verify POOL`",
        "forget" | "rm" | "remove" => "`outlive prune POOL JOB`",
        "delete" => "`outlive prune POOL JOB` for checkpoints, or `outlive job delete POOL JOB`",
        "rename" | "mv" => "`outlive job rename POOL OLD NEW`",
        "backup" | "create" | "add" | "commit" | "save" => "`outlive put POOL JOB PATH…`",
        "compact" => "`outlive gc POOL`",
        "stats" => "`outlive du POOL`",
        "status" | "info" => "`outlive pool status POOL`",
        "bench" => "the program `outlive-bench`",
        "repair" => "`outlive scrub POOL`, or `outlive pool repair POOL` after a target was lost",
        _ => return None,
    };
    Some(format!("outlive has no `{word}`: use {meant}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Args;
    use clap::CommandFactory;

    #[test]
    fn only_commands_that_do_not_exist_are_explained_by_those_that_do() {
        let args = Args::command();
        let is_there = |path: &str| {
            let mut at = Some(&args);
            let words =
                path.split(' ').take_while(|word| word.bytes().all(|b| b.is_ascii_lowercase()));
            for word in words {
                at = at.and_then(|at| at.find_subcommand(word));
            }
            at.is_some()
        };
        for word in [
            "init",
            "snapshots",
            "log",
            "restore",
            "check",
            "forget",
            "backup",
            "list",
            "dump",
            "compact",
            "stats",
            "status",
            "repair",
        ] {
            assert!(!is_there(word), "{word}");
            let told = meant_by(word).unwrap();
            let commands: Vec<&str> = told.split("`outlive ").skip(1).collect();
            assert!(!commands.is_empty() && commands.iter().all(|c| is_there(c)), "{told}");
        }
        assert_eq!(meant_by("lss"), None);
    }
}
