//! The `outlive` command; all of it is in the library.

fn main() {
    std::process::exit(outlive_cli::run(std::env::args_os()));
}
