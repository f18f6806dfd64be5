//! Links that the program carries, such as those over gRPC.
#![forbid(unsafe_code)]

use std::sync::Arc;

use hashbrown::HashMap;
use ucall_buffer::Payload;
use ucall_engine::Engine;

use super::external_link::ExternalLink;
use super::handle::LinkEvent;
use super::transport::{Context, Transport};
use crate::session_manager::{LinkKey, Role};

/// All links that the program carries.
#[derive(Default)]
pub(super) struct ExternalLinks {
    links: HashMap<LinkKey, Arc<ExternalLink>>,
}

impl<E: Engine> Transport<E> for ExternalLinks {
    fn flush_link(&mut self, context: &mut Context<E>, key: LinkKey) {
        let Some(link) = self.links.get(&key) else { return };
        while link.has_room() {
            let mut payload = Payload::new();
            context.manager.poll_output(key, &mut payload, context.now);
            if payload.is_empty() {
                return;
            }
            link.push(&mut payload);
        }
    }

    fn close_link(&mut self, _context: &mut Context<E>, key: LinkKey, _after: bool) {
        if let Some(link) = self.links.remove(&key) {
            link.end();
        }
    }

    fn handle_link_event(
        &mut self,
        context: &mut Context<E>,
        link: &Arc<ExternalLink>,
        event: LinkEvent,
    ) {
        let (manager, now) = (&mut context.manager, context.now);
        match (event, link.key.get().copied()) {
            // Its session may have ended since the program began to connect.
            (LinkEvent::Opened(Role::Dialed), _) if !manager.wants_link() => link.end(),
            (LinkEvent::Opened(role), _) => {
                let key = manager.open_link(role, now);
                if let Some(name) = &link.certificate_name {
                    manager.set_certificate_name(key, name);
                }
                // A link is opened once.
                let _ = link.key.set(key);
                self.links.insert(key, link.clone());
            }
            (LinkEvent::Received(bytes), key) => {
                // An error has closed the link, which the program sees.
                let _ = key.map(|key| manager.handle_received(key, &bytes, now));
                link.consume_input(bytes.len());
            }
            (LinkEvent::HasRoom, Some(key)) => manager.handle_output_sent(key),
            (LinkEvent::Closed, Some(key)) => {
                self.links.remove(&key);
                manager.handle_link_closed(key, now);
                link.end();
            }
            (LinkEvent::HasRoom | LinkEvent::Closed, None) => {}
        }
    }
}
