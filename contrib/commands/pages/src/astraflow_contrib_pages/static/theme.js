// Before the page is drawn, so that it does not flash in the other theme.
(function () {
  const chosen = localStorage.getItem("astraflow-theme");
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
})();
