//! What a server offers, kept as its own text so that nothing is lost on the way to the agent.

use std::sync::Arc;

use indexmap::IndexMap;
use serde_json::value::RawValue;

/// One listed item (a tool, a prompt, a resource): its fields in order, each as the server's own text.
#[derive(Debug, Clone)]
pub struct Item {
    /// The item's `name`, or its `uri` for a resource.
    pub key: String,
    pub fields: IndexMap<String, Box<RawValue>>,
}

impl PartialEq for Item {
    fn eq(&self, other: &Self) -> bool {
        let texts = |item: &Item| {
            item.fields.iter().map(|(k, v)| (k.clone(), v.get().to_owned())).collect::<Vec<_>>()
        };
        self.key == other.key && texts(self) == texts(other)
    }
}

/// Everything that one server lists, all pages of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Listing {
    pub tools: Arc<Vec<Item>>,
    pub prompts: Arc<Vec<Item>>,
    pub resources: Arc<Vec<Item>>,
}
