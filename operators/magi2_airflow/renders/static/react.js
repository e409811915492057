// React and the router as Airflow's page offers them, so that nothing is bundled and nothing is loaded twice.
const React = globalThis.React;
const Router = globalThis.ReactRouterDOM;

export const h = React.createElement;
export const { Component, Fragment, createContext, useContext } = React;
export const { useCallback, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } = React;
export const { Link, useSearchParams } = Router;
