"""The routes of the HTML pages: each reads its views and renders a template. How values are drawn is in `show.render`."""
