//! Small files on a node.

use crate::client::connection::{Node, Repeat};
use crate::protocol::{FileDo, FileReply, FileRequest, check_length};
use bytes::Bytes;
use outlive_backend::SmallFiles;
use outlive_types::Result;
use std::sync::Arc;

/// Small files of a location on a node.
#[derive(Debug)]
pub(crate) struct NodeFiles {
    node: Arc<Node>,
}

impl NodeFiles {
    pub(crate) fn new(node: Arc<Node>) -> NodeFiles {
        NodeFiles { node }
    }

    fn ask(&self, work: FileDo, names: &[&str], bytes: &[u8]) -> Result<FileReply> {
        let doing = match work {
            FileDo::Read | FileDo::Has => "reading a small file",
            _ => "writing a small file",
        };
        // The repetition of one that succeeded would find the file there.
        let repeat = if work == FileDo::WriteNew { Repeat::No } else { Repeat::Yes };
        check_length(bytes)?;
        let request = FileRequest {
            session: Bytes::new(),
            prefix: self.node.prefix(),
            work: work.into(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            bytes: Bytes::copy_from_slice(bytes),
        };
        self.node.ask(doing, repeat, move |mut node, session| {
            let request = FileRequest { session, ..request.clone() };
            async move { node.file(request).await }
        })
    }
}

impl SmallFiles for NodeFiles {
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let reply = self.ask(FileDo::Read, &[name], &[])?;
        Ok(reply.is.then(|| reply.bytes.into()))
    }

    fn has(&self, name: &str) -> Result<bool> {
        Ok(self.ask(FileDo::Has, &[name], &[])?.is)
    }

    fn write_new(&self, name: &str, bytes: &[u8]) -> Result<bool> {
        Ok(self.ask(FileDo::WriteNew, &[name], bytes)?.is)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        self.ask(FileDo::Write, &[name], bytes).map(drop)
    }

    fn keep(&self, name: &str) -> Result<()> {
        self.ask(FileDo::Keep, &[name], &[]).map(drop)
    }

    fn make_folders(&self, names: &[&str]) -> Result<()> {
        self.ask(FileDo::MakeFolders, names, &[]).map(drop)
    }

    fn sync_folder(&self, name: &str) -> Result<()> {
        self.ask(FileDo::SyncFolder, &[name], &[]).map(drop)
    }
}
