//! A node as a target.

use crate::client::connection::{Client, Node, Repeat};
use crate::client::reads::read_all;
use crate::client::writer::NodeWriter;
use crate::protocol::{
    ListPart, ListRequest, Listed, NAMES_MAX, Shard, ShardDo, ShardReply, ShardRequest, shard_name,
};
use bytes::Bytes;
use outlive_backend::{Capacity, ReadRange, ReadTicket, ShardName, ShardWriter, Target, runtime};
use outlive_types::Result;
use std::sync::Arc;

/// Shards of a location on a node.
#[derive(Debug)]
pub(crate) struct NodeTarget {
    node: Arc<Node>,
}

impl NodeTarget {
    pub(crate) fn new(node: Arc<Node>) -> NodeTarget {
        NodeTarget { node }
    }

    fn ask(&self, work: ShardDo, shards: &[ShardName], bytes: u64) -> Result<ShardReply> {
        let doing = match work {
            ShardDo::Length => "asking for a shard",
            ShardDo::Capacity => "asking for its free space",
            ShardDo::Delete | ShardDo::DeleteUnfinished => "deleting shards",
            _ => "syncing shards",
        };
        // Of no shards, too, some work is to be done.
        let mut rest = shards;
        loop {
            let (some, others) = rest.split_at(rest.len().min(NAMES_MAX));
            let request = ShardRequest {
                session: Bytes::new(),
                prefix: self.node.prefix(),
                work: work.into(),
                shards: some.iter().map(|name| Shard::from(*name)).collect(),
                bytes,
            };
            let replied = self.node.ask(doing, Repeat::Yes, move |mut node, session| {
                let request = ShardRequest { session, ..request.clone() };
                async move { node.shard(request).await }
            })?;
            if others.is_empty() {
                return Ok(replied);
            }
            rest = others;
        }
    }

    fn list_all(&self, listed: Listed) -> Result<Vec<ShardName>> {
        let (node, connection) = (self.node.clone(), self.node.connection()?);
        let request = ListRequest {
            session: connection.session.clone(),
            prefix: node.prefix(),
            listed: listed.into(),
            job: String::new(),
        };
        let parts: Vec<ListPart> = runtime::wait(async move {
            // An abandoned shard is no unfinished one.
            connection.after_endings().await;
            let send = |mut client: Client| {
                let request = request.clone();
                async move { client.list(request).await }
            };
            node.collect(&connection, "listing its shards", send).await
        })?;
        parts.iter().flat_map(|part| &part.shards).map(shard_name).collect()
    }

    fn begin(
        &self,
        shard: ShardName,
        bytes_max: u64,
        replaces: bool,
    ) -> Result<Box<dyn ShardWriter>> {
        Ok(Box::new(NodeWriter::begin(self.node.clone(), shard, bytes_max, replaces)?))
    }
}

impl Target for NodeTarget {
    fn describe(&self) -> String {
        format!("storage node {}", self.node.describe())
    }

    fn create(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.begin(shard, bytes_max, false)
    }

    fn replace(&self, shard: ShardName, bytes_max: u64) -> Result<Box<dyn ShardWriter>> {
        self.begin(shard, bytes_max, true)
    }

    fn read_ranges(&self, shard: ShardName, ranges: Vec<ReadRange>) -> Vec<ReadTicket> {
        read_all(&self.node, shard, ranges)
    }

    fn length(&self, shard: ShardName) -> Result<u64> {
        Ok(self.ask(ShardDo::Length, &[shard], 0)?.bytes)
    }

    fn list(&self) -> Result<Vec<ShardName>> {
        self.list_all(Listed::Shards)
    }

    fn sync(&self, shards: &[ShardName]) -> Result<()> {
        self.ask(ShardDo::Sync, shards, 0).map(drop)
    }

    fn unfinished(&self) -> Result<Vec<ShardName>> {
        self.list_all(Listed::Unfinished)
    }

    fn delete_unfinished(&self, shard: ShardName) -> Result<()> {
        self.ask(ShardDo::DeleteUnfinished, &[shard], 0).map(drop)
    }

    fn delete(&self, shard: ShardName) -> Result<()> {
        self.ask(ShardDo::Delete, &[shard], 0).map(drop)
    }

    fn capacity(&self) -> Result<Capacity> {
        Ok(self.ask(ShardDo::Capacity, &[], 0)?.capacity())
    }

    fn make_reserve(&self, bytes: u64) -> Result<()> {
        self.ask(ShardDo::MakeReserve, &[], bytes).map(drop)
    }

    fn delete_reserve(&self) -> Result<u64> {
        Ok(self.ask(ShardDo::DeleteReserve, &[], 0)?.bytes)
    }

    fn freshen(&self, shards: &[ShardName]) -> Result<()> {
        self.ask(ShardDo::Freshen, shards, 0).map(drop)
    }
}
