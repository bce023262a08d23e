//! Finds the user at the other end of a connection on loopback.
//!
//! Every user of a machine reaches its loopback ports. Only the user who started the server, and
//! root, may see the pool.

use std::fs;
use std::net::SocketAddrV4;

/// Looks at the table again, since the kernel may pass over a row while others come and go.
const LOOKS: usize = 3;

/// Returns whether the socket `peer`, connected to `own`, belongs to this user or to root. It is
/// true where the kernel shows no table of sockets: such sandboxes have one user.
pub fn may_read(peer: SocketAddrV4, own: SocketAddrV4) -> bool {
    let user = rustix::process::geteuid().as_raw();
    for _ in 0..LOOKS {
        let Ok(table) = fs::read_to_string("/proc/net/tcp") else { return true };
        if let Some(owner) = owner_in(&table, peer, own) {
            return owner == user || owner == 0;
        }
    }
    false
}

/// Returns the user of the socket at `local`, connected to `remote`, from the kernel's table. The
/// kernel forgets the user of a closed socket and writes 0 there; nothing can read from that any more.
fn owner_in(table: &str, local: SocketAddrV4, remote: SocketAddrV4) -> Option<u32> {
    let (local, remote) = (in_table(local), in_table(remote));
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let is_it = fields.get(1) == Some(&&*local) && fields.get(2) == Some(&&*remote);
        is_it.then(|| fields.get(7)?.parse().ok()).flatten()
    })
}

/// Returns an address as the table has it: the bytes of the address as a number of this machine.
fn in_table(at: SocketAddrV4) -> String {
    format!("{:08X}:{:04X}", u32::from_ne_bytes(at.ip().octets()), at.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

    fn v4(at: SocketAddr) -> SocketAddrV4 {
        match at {
            SocketAddr::V4(at) => at,
            SocketAddr::V6(_) => unreachable!(),
        }
    }

    #[test]
    fn the_kernel_names_the_owner_of_a_connection() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (own, peer) = (v4(client.peer_addr().unwrap()), v4(client.local_addr().unwrap()));
        let table = fs::read_to_string("/proc/net/tcp").unwrap();
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(owner_in(&table, peer, own), Some(user), "{table}");
        assert!(may_read(peer, own));
        let other = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 1);
        assert_eq!(owner_in(&table, other, own), None);
        assert!(!may_read(other, own), "a connection without an owner is no one's");
    }

    #[test]
    fn the_row_of_the_other_end_counts() {
        if cfg!(target_endian = "little") {
            let at = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0x1F90);
            assert_eq!(in_table(at), "0100007F:1F90");
            let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n \
                         0: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     7 0 1\n \
                         1: 0100007F:C350 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000 0 2\n";
            let client = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0xC350);
            assert_eq!(owner_in(table, client, at), Some(1000));
        }
    }
}
