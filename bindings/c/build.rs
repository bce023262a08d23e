//! Sets the version of the interface in the shared library, and keeps the library loaded: its
//! threads must not lose their code to a `dlclose`.

/// Number of the binary interface; raised with each change that breaks compiled programs.
const ABI: u32 = 0;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liboutlive.so.{ABI}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
