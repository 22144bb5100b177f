//! Where a pod's servers listen unless they are told.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

/// Every address of this machine: of both families where one socket takes both, which pods of an IPv6 cluster need; of IPv4 where
/// the kernel has no IPv6, or keeps the two apart.
pub fn everywhere() -> IpAddr {
    let takes_both = || {
        let both = TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0))?;
        let port = both.local_addr()?.port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port))
    };
    match takes_both() {
        Ok(_) => Ipv6Addr::UNSPECIFIED.into(),
        Err(_) => Ipv4Addr::UNSPECIFIED.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_everywhere_is_reached_by_ipv4_and_where_there_is_ipv6_by_that() {
        let listener = TcpListener::bind((everywhere(), 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        let has_ipv6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
        assert!(!has_ipv6 || everywhere().is_ipv4() || TcpStream::connect((Ipv6Addr::LOCALHOST, port)).is_ok());
    }
}
