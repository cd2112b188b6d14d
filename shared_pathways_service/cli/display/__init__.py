"""The output of commands; finds no data itself.

- `output`: JSON for programs, tables and lines for people
- `deploy_display`, `serve_display`: live displays of a service
- `decision_lines`: decisions and reservations
- `moments`: times
- `manifest_text`: YAML of objects
- `report_png`, `run_summary`: reports of runs
"""
