//! What one caller sends harms no other caller.

use super::*;

#[test]
fn each_call_is_one_line_on_a_shared_connection() {
    // Servers that read lines would run the second line, with the id of another call.
    let smuggled = "[\n{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"admin\"}\r\n]";
    let named = format!("{{\"a\":{smuggled}}}");
    let added = Rewrite::new(Vec::new(), "{\"t\":\n[\r1]}").expect("it is valid");
    for (scheme, is_raw) in [("tcp", true), ("http", false)] {
        let options = options(&[&format!("{scheme}://127.0.0.1:1")]);
        let mut relay = relay(RelayOptions { rewrite: added.clone(), ..options });
        let meta = "{\n\"progressToken\":1,\r\"traceparent\":\"a\\nb\"}";
        // A lost call is sent again from a copy of its text.
        relay.call("up.get", &named, "{}").expect("it is taken");
        connect(&mut relay);
        let written = relay.sockets().get_mut(&0).map(|it| std::mem::take(&mut it.sent));
        relay.disconnect(0, io::ErrorKind::ConnectionReset.into());
        relay.call("up.f", &named, "{}").expect("it is taken");
        relay.call("up.f", &named, meta).expect("it is taken");
        relay.notify("up.f", &named).expect("it is taken");
        connect(&mut relay);
        let mut sent = written.unwrap_or_default();
        relay.sockets().values().for_each(|socket| sent.extend_from_slice(&socket.sent));
        let text = String::from_utf8_lossy(&sent);
        assert_eq!(text.matches("admin").count(), 5, "{text}");
        if is_raw {
            assert!(!text.contains('\r') && text.matches('\n').count() == 5, "{text}");
            assert!(
                sent_calls(&sent).iter().all(|(_, params)| params.ends_with("[ 1]}")),
                "{text}"
            );
        } else {
            // The body has a length, so its bytes stay.
            assert_eq!(text.matches(smuggled).count(), 5, "{text}");
        }
    }
}
