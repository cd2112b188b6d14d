"""`sps ui`: a service as a web page on loopback.

- `page_access`: who may read the page: token, cookie, host name, headers. Pure.
- `page_state`: the state of a service by rows, and the difference of two states. Pure.
- `start_plans`: which slices come from which tenants, for preemptions and reservations. Pure.
- `slice_history`: who held which slice when, from recorded decisions. Pure.
- `service_feed`: reads the service for all open pages.
- `service_questions`: answers of the service's history, for single requests.
- `connection_details`: the link, proxy, counters and log of one connection.
- `page_actions`: what a page may do to the service where that is allowed.
- `training_runs`: reports on elastic training runs.
- `page_server`: the HTTP server.
- `browser`: opens the page without showing the token to other users.
- `static/`: the page itself, ES modules and CSS, without a build step.
"""
